"""What all models of the resource share: how fields are named and checked, and the scalar types."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class Model(BaseModel):
    """One object of the resource: snake_case in Python, camelCase in YAML, no unknown fields.

    Values are taken as they are (``"1"`` is not a number), as the Kubernetes API server does. A comment
    under a field becomes its description in the CRD. Objects do not change: make another one with
    ``model_copy(update=...)``.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        strict=True,
        frozen=True,
        use_attribute_docstrings=True,
    )


def wrong(message: str, *at: str | int) -> PydanticCustomError:
    """Return the error of one of our rules: what is wrong, ``at`` which field below the checked object."""
    return PydanticCustomError("manifest", "{message}", {"message": message, "at": at})


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    """Return a model's rules for the API server, from pairs of a CEL expression and its message."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in pairs]}


IS_SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}
"""Of a list whose items all differ: server-side apply merges it item by item."""


@dataclass(frozen=True)
class Matching:
    """A text that has to match a pattern, and what to say when it does not.

    The pattern goes into the CRD too, so it must mean the same in Python and in RE2: no look-around.
    """

    pattern: str
    message: str

    def check(self, text: str) -> str:
        if re.fullmatch(self.pattern, text, re.ASCII) is None:
            raise wrong(f"{text!r} {self.message}")
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "pattern": self.pattern}


_AUTHORITY = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*:)?//(?P<authority>[^/]*)")
_IP_V6 = re.compile(r"\[[0-9a-fA-F.]*:[0-9a-fA-F:.]*\](:[0-9]*)?")


@dataclass(frozen=True)
class PlainHost:
    """Of a path or an address of a file system: where the bucket or host belongs, there is one.

    Brackets there, as in ``s3a://[BUCKET]/x``, are a placeholder that nobody has filled in. No library reads
    such an address, or one without a scheme (``//[x``).
    """

    def check(self, text: str) -> str:
        found = _AUTHORITY.match(text)
        authority = found["authority"] if found is not None else ""
        if re.search(r"[\[\]<>]", authority) and _IP_V6.fullmatch(authority.rpartition("@")[2]) is None:
            raise wrong(f"{authority!r} is not the name of a bucket or host: replace it with one")
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
FOREVER_SECONDS = 36_500 * UNIT_SECONDS["d"]
"""A hundred years, which is as good as for ever. Longer durations leave the range of dates and timers."""

Duration = Annotated[
    str,
    Field(max_length=12),
    Matching(
        r"^[0-9]{1,9}(ms|s|m|h|d)$",
        "is not a valid duration: write a whole number and ms, s, m, h or d, like 10s",
    ),
]
PositiveDuration = Annotated[
    str,
    Field(max_length=12),
    Matching(
        r"^0{0,8}[1-9][0-9]{0,8}(ms|s|m|h|d)$",
        "is not a valid duration above zero: write a whole number and ms, s, m, h or d, like 10s",
    ),
]


def duration_seconds(text: str) -> float:
    """Return the seconds in a duration such as ``500ms``, ``10s``, ``5m``, ``6h`` or ``7d``.

    A duration of more than a hundred years, with which users say "for ever", counts as a hundred years: it
    can be added to any current time, or subtracted from it.

    Raises ValueError if ``text`` is not a duration.
    """
    found = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d)", text)
    if found is None:
        raise ValueError(
            f"{text!r} is not a valid duration: write a whole number and ms, s, m, h or d, like 10s"
        )
    return min(int(found[1]) * UNIT_SECONDS[found[2]], FOREVER_SECONDS)


Token = Annotated[str, Field(max_length=253)]
Location = Annotated[
    str,
    Field(max_length=1024),
    Matching(
        r"^[^\s{}]([^{}]*[^\s{}])?$",
        "is not a valid path: it must not be empty, begin or end with a space or have braces",
    ),
]
SecretName = Annotated[
    str,
    Field(max_length=253),
    Matching(
        r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$",
        "is not a valid name of a Secret: use lower-case letters, digits, '-' and '.'",
    ),
]
ColumnName = Annotated[str, Field(min_length=1, max_length=255)]
NewColumnName = Annotated[
    str,
    Field(min_length=1, max_length=255),
    Matching(
        r"^(_|_?[^_].*)$", "is not a valid name for a column: those that begin with __ belong to Lakemirror"
    ),
]
TopicName = Annotated[
    str,
    Field(max_length=249),
    Matching(
        r"^[a-zA-Z0-9._-]{1,249}$",
        "is not a valid name of a Kafka topic: use letters, digits, '.', '_' and '-'",
    ),
]
