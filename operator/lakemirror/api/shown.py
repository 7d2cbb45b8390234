"""How text of other people's is shown: names, reasons and messages, in logs, on terminals and in reports."""

from __future__ import annotations

import re
from typing import Final

_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_DIRECTIONS: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""What changes the order in which other characters are shown (Unicode Bidirectional Algorithm, UAX 9)."""
_HIDDEN: Final = re.compile(f"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff{_DIRECTIONS}]")


def shown(text: str) -> str:
    r"""Return text in which control characters are escapes as in JSON: ``\n`` or ``\u001b``.

    These are the characters that end a line, move a cursor, color a terminal, or change the order of the
    others. So that text may be shown twice, a backslash stays as it is.
    """
    return _HIDDEN.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    return _SHORT.get(character) or f"\\u{ord(character):04x}"
