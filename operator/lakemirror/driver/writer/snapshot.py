"""What the log says about a table at a version (PROTOCOL.md, Action Reconciliation)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lakemirror.driver.writer.actions import (
    Action,
    Add,
    Domain,
    Metadata,
    Protocol,
    Remove,
    Transaction,
    parse,
)

CLUSTERING = "delta.clustering"
"""The domain that names the clustering columns."""

Key = tuple[str, str | None]


@dataclass(frozen=True)
class Snapshot:
    """A table at a version.

    ``transactions`` and ``domains`` are all that there are, or None if not all are known.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    files: Mapping[Key, Add] = field(default_factory=dict)
    transactions: Mapping[str, Transaction] | None = field(default_factory=dict)
    domains: Mapping[str, Domain] | None = field(default_factory=dict)

    def after(self, actions: Iterable[Action]) -> Snapshot:
        """Return the table at the next version, which has these actions."""
        return self.after_all([actions])

    def after_all(self, entries: Iterable[Iterable[Action]]) -> Snapshot:
        """Return the table at a later version: the next ones have the actions of these entries."""
        state = _State(self)
        for each in entries:
            state.add(each)
        return state.snapshot()

    @property
    def clustered(self) -> tuple[tuple[str, ...], ...]:
        """The clustering columns, each as the physical names along its path."""
        domain = (self.domains or {}).get(CLUSTERING)
        listed = json.loads(domain.configuration).get("clusteringColumns", []) if domain else []
        return tuple(tuple(each) for each in listed)


class _State:
    """The state of a table while entries are added to it."""

    def __init__(self, before: Snapshot) -> None:
        self._version, self._protocol, self._metadata = before.version, before.protocol, before.metadata
        self._files = dict(before.files)
        self._transactions = None if before.transactions is None else dict(before.transactions)
        self._domains = None if before.domains is None else dict(before.domains)

    def add(self, actions: Iterable[Action]) -> None:
        """Add the entry of the next version."""
        self._version += 1
        listed = list(actions)
        for each in listed:  # removes name files as they were before: the order of lines means nothing
            if isinstance(each, Remove):
                self._files.pop(each.key, None)
        for each in listed:
            match each:
                case Add():
                    self._files[each.key] = each
                case Transaction() if self._transactions is not None:
                    self._transactions[each.app_id] = each
                case Domain() if self._domains is not None:
                    self._domains.pop(each.name, None)
                    if not each.removed:
                        self._domains[each.name] = each
                case Metadata():
                    self._metadata = each
                case Protocol():
                    self._protocol = each

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self._version, self._protocol, self._metadata, self._files, self._transactions, self._domains
        )


def begun(version: int, actions: Iterable[Action]) -> Snapshot:
    """Return the table at a version of which these are all the actions that make its state.

    They are those of a checkpoint, or of the first entry. Raises ValueError if they lack the table's protocol
    or metadata.
    """
    listed = list(actions)
    protocol = next((each for each in listed if isinstance(each, Protocol)), None)
    metadata = next((each for each in listed if isinstance(each, Metadata)), None)
    if protocol is None or metadata is None:
        raise ValueError("it has no protocol or no metadata")
    return Snapshot(version - 1, protocol, metadata).after(listed)


def actions_of(entry: str) -> list[Action]:
    """Return the actions of a log entry that make a table's state.

    Raises ValueError if a line is no action.
    """
    try:
        return [each for line in entry.split("\n") if line and (each := parse(line)) is not None]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a line is no action: {error!r}") from error


def replay(entries: Iterable[str]) -> Snapshot:
    """Return the table after all entries of a log, from version 0 on.

    Raises ValueError if they do not begin with the table's protocol and metadata.
    """
    listed = list(map(actions_of, entries))
    if not listed:
        raise ValueError("there is no entry")
    return begun(0, listed[0]).after_all(listed[1:])
