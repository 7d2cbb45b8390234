"""What the log of a Delta table says about commits: who made them, and whether they changed data.

The form of the log's files is Delta's (PROTOCOL.md, Delta Log Entries and Actions).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakemirror.driver.checkpoint.storage import file_system, open_storage
from lakemirror.driver.java import java_class

APP_ID: Final = "lakemirror/"
"""The application IDs of Lakemirror's own transactions begin with this."""

_FILE: Final = re.compile(r"(\d{20})\.json")
_REPLACING: Final = re.compile(r"RESTORE|.*REPLACE TABLE.*|CLONE")
"""Operations that put other rows in place of those that were there (Delta, DeltaOperations)."""
_COUNTED: Final = (
    *("numDeletedRows", "numUpdatedRows", "num_deleted_rows", "num_updated_rows"),
    *("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"),
    *("num_target_rows_inserted", "num_target_rows_updated", "num_target_rows_deleted"),
)
_ADDED: Final = ("numOutputRows", "num_added_rows")


@dataclass(frozen=True)
class Commit:
    """A version of a table, and how it came to be.

    ``ours`` says that the commit carries Lakemirror's transaction or note, and ``changes`` that it changes
    data: maintenance, and changes of columns and properties, do not. ``replaces`` says that it put other rows
    in place of all that were there. ``rows`` is how many rows it changed, if it says so. ``columns`` are the
    columns of the table afterwards, if the commit may have changed them.
    """

    version: int
    operation: str = "an unknown operation"
    user: str | None = None
    ours: bool = False
    changes: bool = False
    replaces: bool = False
    rows: int | None = None
    columns: tuple[str, ...] | None = None


def parse(version: int, text: str) -> Commit:
    """Return what the log file of a version says. Lines that cannot be read say nothing."""
    # Not splitlines: statistics have texts, and JSON does not escape what else may end a line.
    actions = [each for line in text.split("\n") if isinstance(each := _json(line), dict)]
    infos = [each["commitInfo"] for each in actions if isinstance(each.get("commitInfo"), dict)]
    info: dict[str, Any] = infos[0] if infos else {}
    operation = str(info.get("operation") or Commit.operation)
    return Commit(
        version,
        operation,
        _user(info),
        ours=_is_noted(info) or any(_is_transaction(each.get("txn")) for each in actions),
        changes=any(_changes(each.get(kind)) for each in actions for kind in ("add", "remove", "cdc")),
        replaces=_replaces(operation, info.get("operationParameters")),
        rows=_rows(info.get("operationMetrics")),
        columns=next((_columns(each["metaData"]) for each in actions if each.get("metaData")), None),
    )


def is_newest(spark: SparkSession, path: str, version: int) -> bool:
    """Return whether a version of the table at a path is there and the newest.

    Versions have no gaps, so this takes only the files of this one and the next. A local disk is asked for
    both. Other storage is asked to list what comes from the first of them on, which is one request.
    """
    log = f"{path.rstrip('/')}/_delta_log"
    files, first = file_system(spark, f"{log}/{version:020d}.json")
    if files.getScheme() == "file":
        _, second = file_system(spark, f"{log}/{version + 1:020d}.json")
        return bool(files.exists(first)) and not files.exists(second)
    store = java_class(spark, "org.apache.spark.sql.delta.storage.LogStore").apply(spark._jsparkSession)
    try:
        listed = store.listFrom(files.makeQualified(first), files.getConf())
    except Py4JJavaError as error:
        if "java.io.FileNotFoundException" in str(error.java_exception):
            return False
        raise
    found = set()
    while listed.hasNext():
        match = _FILE.fullmatch(str(listed.next().getPath().getName()))
        found |= {int(match[1])} if match else set()
    return max(found, default=None) == version


def between(spark: SparkSession, path: str, after: int, until: int) -> list[Commit]:
    """Return the commits of the table at a path after one version, up to another.

    Those whose files Delta has cleaned up are left out: nothing is known about them.
    """
    storage = open_storage(f"{path.rstrip('/')}/_delta_log", spark)
    found = []
    for version in range(after + 1, until + 1):
        try:
            found.append(parse(version, storage.read_text(f"{version:020d}.json")))
        except FileNotFoundError:
            continue
    return found


def _json(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _is_noted(info: Mapping[str, Any]) -> bool:
    note = _json(str(info.get("userMetadata") or ""))
    return isinstance(note, dict) and {"query", "batch"} <= note.keys()


def _is_transaction(txn: Any) -> bool:
    return isinstance(txn, dict) and str(txn.get("appId")).startswith(APP_ID)


def _changes(file: Any) -> bool:
    return isinstance(file, dict) and file.get("dataChange") is not False


def _replaces(operation: str, parameters: Any) -> bool:
    given = parameters if isinstance(parameters, dict) else {}
    whole = str(given.get("predicate") or "[]").strip('"') in ("[]", "true")
    overwrites = str(given.get("mode", "")).lower() == "overwrite" and whole
    return _REPLACING.fullmatch(operation.upper()) is not None or overwrites


def _user(info: Mapping[str, Any]) -> str | None:
    """Return who made a commit. Open-source Delta does not name users, but the program."""
    names = ("userName", "userId", "engineInfo", "clientVersion")
    return next((str(info[name]) for name in names if info.get(name)), None)


def _rows(metrics: Any) -> int | None:
    counts = metrics if isinstance(metrics, dict) else {}
    changed = _numbers(counts, _COUNTED)
    found = changed or _numbers(counts, _ADDED)
    return sum(found) if found else None


def _numbers(counts: Mapping[str, Any], names: Iterable[str]) -> list[int]:
    return [int(counts[name]) for name in names if str(counts.get(name, "")).isdigit()]


def _columns(metadata: Mapping[str, Any]) -> tuple[str, ...] | None:
    schema = _json(str(metadata.get("schemaString")))
    fields = schema.get("fields") if isinstance(schema, dict) else None
    return tuple(each["name"] for each in fields) if isinstance(fields, list) else None
