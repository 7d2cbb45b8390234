"""The checksum file of a version (PROTOCOL.md, Version Checksum File): complete, or not written.

Delta copies its lists of transactions and domains into later ones and answers from them. One that leaves
anything out would make it forget which batches a table has.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from lakemirror.driver.writer import exact_json
from lakemirror.driver.writer.snapshot import Snapshot

_MOST_TRANSACTIONS, _MOST_DOMAINS, _MOST_FILES = 100, 10, 50
"""How many Delta lists at most (`DeltaSQLConf`). Files are a list that may be missing."""
_RETENTION: Final = "delta.setTransactionRetentionDuration"
_VECTORS: Final = "deletionVectors"


def name_of(version: int) -> str:
    """Return the name of the checksum file of a version."""
    return f"{version:020d}.crc"


def text_of(snapshot: Snapshot, commit_id: str) -> bytes | None:
    """Return the checksum file of a version that the commit with an ID made, or None if it has none.

    It has none if not all of its transactions and domains are known, if there are many, or if transactions
    are forgotten after a time.
    """
    transactions, domains = snapshot.transactions, snapshot.domains
    if transactions is None or domains is None or _RETENTION in snapshot.metadata.properties:
        return None
    if len(transactions) > _MOST_TRANSACTIONS or len(domains) > _MOST_DOMAINS:
        return None
    files = list(snapshot.files.values())
    told: dict[str, Any] = {
        "txnId": commit_id,
        "tableSizeBytes": sum(each.size for each in files),
        "numFiles": len(files),
        **_hidden(snapshot),
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": [each.action["txn"] for each in transactions.values()],
        "domainMetadata": [each.action["domainMetadata"] for each in domains.values()],
        "metadata": snapshot.metadata.action["metaData"],
        "protocol": snapshot.protocol.action["protocol"],
    }
    if len(files) <= _MOST_FILES:
        told["allFiles"] = [replace(each, changes=False).action["add"] for each in files]
    return f"{exact_json.dumps(told)}\n".encode()


def _hidden(snapshot: Snapshot) -> dict[str, int]:
    """Return how many rows are hidden by how many vectors, for a table that may have any."""
    if _VECTORS not in (snapshot.protocol.writer_features or ()):
        return {}
    found = [each.vector for each in snapshot.files.values() if each.vector is not None]
    return {"numDeletedRecordsOpt": sum(each.rows for each in found), "numDeletionVectorsOpt": len(found)}
