"""The log of driver and operator: whatever a message contains, it is one line."""

from __future__ import annotations

import logging
import time
from typing import Any

from lakemirror.api.shown import shown


class OneLine(logging.Formatter):
    """Formats a message as one line, in which control characters are escapes, with times in UTC.

    A name in a message can neither begin a line that looks like another message nor reach the terminal. The
    lines of a stack trace are indented, so that none of them looks like a message.
    """

    converter = staticmethod(time.gmtime)

    @classmethod
    def begin(cls, form: str, level: str, datefmt: str | None = None) -> None:
        """Log messages of this ``level`` and above to standard error from now on."""
        handler = logging.StreamHandler()
        handler.setFormatter(cls(form, datefmt))
        logging.basicConfig(handlers=[handler], level=level)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name that logging gives it
        return shown(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(f"  {shown(line)}" for line in text.split("\n"))
