"""Databases that are read or written over JDBC."""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import ConfigDict, Field, model_validator

from lakemirror.api.base import Matching, Model, SecretName, rules, wrong
from lakemirror.api.logins import IN_JDBC, in_jdbc

NO_LOGIN: Final = (
    f"!self.url.matches('{IN_JDBC}')",
    "url must not have user or password: put them into a Secret",
)

_PLACING: Final = ("currentschema", "options", "service", "pghost", "pgport", "pgdbname")
"""Options of PostgreSQL's driver that say which database or schema is meant."""


def place_of(url: str) -> str:
    """Return the part of a URL that says where tables are, without options of the connection."""
    place, _, options = url.partition("?")
    placing = sorted(each for each in options.split("&") if each.partition("=")[0].lower() in _PLACING)
    return "&".join([place, *placing])


class JdbcUrl(Model):
    """A database."""

    model_config = ConfigDict(json_schema_extra=rules(NO_LOGIN))

    url: Annotated[
        str,
        Field(max_length=1024),
        Matching(
            r"^jdbc:(postgresql|mariadb|mysql):[^\s]+$",
            "is not a valid URL: write one like jdbc:postgresql://db:5432/shop or jdbc:mariadb://db:3306/",
        ),
    ]
    """The JDBC URL, with parameters of the driver such as sslmode=require."""
    secret: SecretName | None = None
    """A Secret with username and password."""

    @model_validator(mode="after")
    def _no_login(self) -> Self:
        found = in_jdbc(self.url)
        if found is not None:
            raise wrong(f"must not have {found}: put it into a Secret, and name that in secret", "url")
        return self
