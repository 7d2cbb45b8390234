"""Logins in addresses, which do not belong in a manifest.

Anyone who may read pipelines, ConfigMaps, Events or logs would read them there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from lakemirror.api.base import wrong

_IN_PATH: Final = r"^[a-zA-Z][a-zA-Z0-9+.-]*:/+[^/:@\[]*:([^/@]*|[0-9]*[^0-9/@][^@]*)@"
"""A name, a colon, and what follows it up to an @: Hadoop reads ``s3a://ID:KEY@bucket``, and keys may contain
slashes. A port before a path with an @ is none, and neither is the container of ``abfss://container@account``.
"""
IN_JDBC: Final = r"(?i)(user(name)?|passw(or)?d[0-9]?|pwd|passphrase)[ ]*=|@"
"""Options of the drivers for PostgreSQL, MySQL and MariaDB, and ``user:password@`` before a host, in which
passwords may contain any other character. It goes into the CRD, too, so it must mean the same in Python and
in RE2: no look-around.
"""
_PARAMETER: Final = (
    r"[?&;](api[_.-]?key|((access|auth|session|security|id|refresh)[_.-]?)?token|sig(nature)?|secret"
    r"|passw(or)?d|pwd|client[_.-]?secret|(account|access|private)[_.-]?key"
    r"|x-amz-(credential|signature|security-token))="
)
"""Parameters of an address that let in whoever knows them."""
ADDRESSES_WITH_LOGIN: Final = (
    r"[a-z][a-z0-9+.-]*:/+[^/:@\s\[]*:[^@\s]*@",
    r"jdbc:\S*(passw(or)?d|pwd)\w*=",
    rf"://\S*{_PARAMETER}",
)
"""In any text. Spark uses them, too, so they must mean the same in Python and in Java."""
_IN_SETTING: Final = re.compile("|".join(ADDRESSES_WITH_LOGIN), re.IGNORECASE)
_REMEDY: Final = "must not have a user and a password, nor a key: put them into a Secret"


@dataclass(frozen=True)
class WithoutLogin:
    """Of a path or an address of a file system: it must not contain a login."""

    def check(self, text: str) -> str:
        if re.search(_IN_PATH, text, re.ASCII) or in_query(text):
            raise wrong(f"{_REMEDY} (docs/object-stores.md, Keys and passwords)")
        return text

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._of_any, handler(source))

    def _of_any(self, value: object) -> object:
        return self.check(value) if isinstance(value, str) else value


def in_jdbc(url: str) -> str | None:
    """Return what a JDBC URL has that belongs in a Secret, user or password; None if it has neither."""
    if in_query(url) and re.search(IN_JDBC, url) is None:
        return "password"
    found = re.search(IN_JDBC, url) or re.search(IN_JDBC.removesuffix("|@"), unquote(url))
    if found is None:
        return None
    return "user" if found[0].lower().startswith("user") else "password"


def in_query(address: str) -> bool:
    """Return whether an address has a parameter that is a password or a key."""
    return re.search(_PARAMETER, unquote(address), re.IGNORECASE) is not None


def in_setting(value: str) -> bool:
    """Return whether the value of a setting contains an address with a password or a key."""
    return _IN_SETTING.search(value) is not None


def redacted(text: str) -> str:
    """Return a message without the logins of addresses that it quotes."""
    for pattern, instead in _QUOTED:
        text = pattern.sub(instead, text)
    return text


_QUOTED: Final = (
    (re.compile(r"(jdbc:)[^\s'\"]*@", re.IGNORECASE), r"\1***@"),
    (re.compile(r"(:/+)[^\s/:@\[]*:[^\s@'\"]*@"), r"\1***@"),
    (re.compile(rf"({_PARAMETER})[^&;\s'\"]+", re.IGNORECASE), r"\1***"),
    (re.compile(r"((?:passw(?:or)?d|pwd|passphrase)[0-9]?\s*=\s*)[^&;,)\s'\"]+", re.IGNORECASE), r"\1***"),
)
