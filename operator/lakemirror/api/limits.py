"""How many names there may be, and how long: all limits of what records and schemas may name.

A record names its table, its connector and its schema itself, and each name stays in the state of the
driver, its report and its metrics. A record that exceeds a limit goes to the quarantine, and the reason has
the limit's name. docs/limits.md has the same table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple


class Limit(NamedTuple):
    """A limit: its name in messages, the most that there may be, and of what."""

    name: str
    most: int
    of: str

    def __str__(self) -> str:
        return f"the limit {self.name} ({self.most:,} {self.of})"


NAME_LENGTH: Final = Limit("nameLength", 255, "characters in each part of a table's name")
CONNECTOR_LENGTH: Final = Limit("connectorLength", 512, "characters in the name of a connector or server")
TOPIC_LENGTH: Final = Limit("topicLength", 767, "characters in the name of a topic")
TABLES: Final = Limit("tables", 10_000, "source tables in a pipeline")
CONNECTORS: Final = Limit("connectors", 1_000, "logs or connectors (source.name) in a pipeline")
STREAMS: Final = Limit("streams", 100_000, "partitions with the changes of a connector")
SCHEMAS: Final = Limit("schemas", 1_000, "schemas of a table in a batch")

LIMITS: Final = (NAME_LENGTH, CONNECTOR_LENGTH, TOPIC_LENGTH, TABLES, CONNECTORS, STREAMS, SCHEMAS)

REPORT_BYTES: Final = 768 * 1024
"""The most bytes of a report in a ConfigMap. Kubernetes takes 1 MiB."""


def beyond(known: Collection[str], names: Iterable[str], limit: Limit) -> list[str]:
    """Return those of ``names`` for which there is no room beside the ``known`` ones, in order.

    Names that are known always have room. Of the others, the first ones in the order of the alphabet have.
    """
    new = sorted({*names}.difference(known))
    return new[max(0, limit.most - len(known)) :]
