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
        protocol, metadata, files = self.protocol, self.metadata, dict(self.files)
        transactions = None if self.transactions is None else dict(self.transactions)
        domains = None if self.domains is None else dict(self.domains)
        listed = list(actions)
        for each in listed:  # removes name files as they were before: the order of lines means nothing
            if isinstance(each, Remove):
                files.pop(each.key, None)
        for each in listed:
            match each:
                case Add():
                    files[each.key] = each
                case Transaction() if transactions is not None:
                    transactions[each.app_id] = each
                case Domain() if domains is not None:
                    domains.pop(each.name, None)
                    if not each.removed:
                        domains[each.name] = each
                case Metadata():
                    metadata = each
                case Protocol():
                    protocol = each
        return Snapshot(self.version + 1, protocol, metadata, files, transactions, domains)

    @property
    def clustered(self) -> tuple[tuple[str, ...], ...]:
        """The clustering columns, each as the physical names along its path."""
        domain = (self.domains or {}).get(CLUSTERING)
        listed = json.loads(domain.configuration).get("clusteringColumns", []) if domain else []
        return tuple(tuple(each) for each in listed)


def replay(entries: Iterable[str]) -> Snapshot:
    """Return the table after all entries of a log, from version 0 on.

    Raises ValueError if they do not begin with the table's protocol and metadata.
    """
    found: Snapshot | None = None
    for text in entries:
        actions = [each for line in text.split("\n") if line and (each := parse(line)) is not None]
        found = (_begun(actions) if found is None else found).after(actions)
    if found is None:
        raise ValueError("there is no entry")
    return found


def _begun(actions: Iterable[Action]) -> Snapshot:
    listed = list(actions)
    protocol = next((each for each in listed if isinstance(each, Protocol)), None)
    metadata = next((each for each in listed if isinstance(each, Metadata)), None)
    if protocol is None or metadata is None:
        raise ValueError("the first entry has no protocol or no metadata")
    return Snapshot(-1, protocol, metadata)
