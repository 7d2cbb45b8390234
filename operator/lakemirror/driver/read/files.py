"""Files in the order of their names, each applied once: Kafka records saved as JSON Lines.

The checkpoint holds, beside the query id (``metadata.json``)::

    files/offsets/<N>.json   written before batch N is applied: its files with size, mtime and sha256
    files/commits/<N>.json   written after batch N was applied
    files/grown/<N>.json     names of files of batch N that have grown since it was recorded: not applied
    files/state/<N>.json     all files of the batches up to N, in place of the older ones of these

A file that is still being copied is not read: a ``.gz`` before it is a whole gzip stream, another file
whose last line has no end before it has not changed for a while. What was taken too early all the same is
noticed, for the former content then stands at the beginning of the new one: the file is read again whole,
which changes no row that is right.
"""

from __future__ import annotations

import fnmatch
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.api.source import FilesSource, Source
from lakemirror.driver import faults
from lakemirror.driver.checkpoint import identity
from lakemirror.driver.checkpoint.storage import Entry, Storage, open_storage
from lakemirror.driver.document import from_millis, iso
from lakemirror.driver.errors import BatchMismatch, CheckpointInUse, LakemirrorError
from lakemirror.driver.expressions import kept
from lakemirror.driver.read.base import Batch, Committed, Lag
from lakemirror.driver.read.watch import SourceWatch

SUFFIXES = (".jsonl", ".jsonl.gz")
COMPACT_EVERY = 50
_POLL_SECONDS = 0.2
_LEAST_BLOCK, _BLOCK = 2 * 2**20, 16 * 2**20
"""What a task reads of a file at most, in a small batch and in a large one: little enough that one file keeps
several cores busy.
"""
_LAST_MILLIS = 253_370_764_799_999
"""The end of the year 9998; a timestamp after it is none."""
_log = logging.getLogger(__name__)

_RECORD = (
    "topic STRING, partition INT, offset BIGINT, timestamp BIGINT, "
    "key STRING, value STRING, headers ARRAY<ARRAY<STRING>>"
)


_CUT_OFF = "it is not a complete gzip stream"
_NO_END = "its last line has no end"
_UNREADABLE = "this user may not read it"
_SETTLE_SECONDS = 5.0
"""For how long a file whose last line has no end has to stay as it is until it is taken."""
_PATIENCE_SECONDS, _PATIENCE_ONCE_SECONDS = 60.0, 10.0
"""For how long a file that cannot be read has to stay as it is until it is reported, and a run once fails."""


class InputMissing(LakemirrorError):
    """The files to read are not there."""


class InputIncomplete(LakemirrorError):
    """Files are cut off, or cannot be read; all others are applied."""


@dataclass
class _IncompleteFile:
    """A file that is not taken yet, and why; ``since`` when it is as it is (monotonic seconds)."""

    stamp: tuple[int, int]
    reason: str
    since: float
    told: bool = False


@dataclass(frozen=True)
class InputFile:
    """A file of a batch; ``same_as`` names the applied file that has the same content, if it is skipped."""

    name: str
    size: int
    mtime: int
    sha256: str
    same_as: str | None = None


class FilesFeed:
    """A directory, a pattern (``dir/*.jsonl``) or a single file as a source; see ``base.Feed``.

    ``base64`` tells that keys and values are stored as base64 of their bytes. ``warn`` is told of
    files that are not applied: a known name with new content, or known content under a new name. ``watch``
    takes in whether the files can be listed.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: FilesSource,
        storage: Storage,
        *,
        base64: bool = False,
        interval_seconds: float = 10.0,
        warn: Callable[[str], None] = _log.warning,
        watch: SourceWatch | None = None,
    ) -> None:
        self._spark = spark
        self._watch = watch or SourceWatch()
        self._source = source
        self._inputs = _Inputs(source.path, spark)
        self._limit = source.max_files_per_batch
        self._storage = storage
        self._base64 = base64
        self._interval = interval_seconds
        self._warn = warn
        self._ledger = _Ledger.load(storage)
        self._looked_at: dict[str, tuple[int, int]] = {}
        self._waiting: dict[str, _IncompleteFile] = {}
        self._patience = _PATIENCE_SECONDS
        self._caught_up = False
        self.changed = 0
        self.skipped = 0
        self.query_id = identity.query_id(storage, "files", started=self._ledger.next_id > 0)

    def run(
        self,
        apply: Callable[[DataFrame, Batch], None],
        *,
        once: bool,
        stopping: Callable[[], bool],
    ) -> None:
        listing = self._list(once=once)
        self._ledger = _Ledger.load(self._storage)
        self._patience = _PATIENCE_ONCE_SECONDS if once else _PATIENCE_SECONDS
        for batch_id, files in self._ledger.pending():
            if stopping():
                return
            if self._grown(batch_id, files):
                self._ledger.abandon(batch_id)
            else:
                self._apply(apply, batch_id, files)
        while not stopping():
            files = self._record_next(listing)
            self._caught_up = not files and all(each.told for each in self._waiting.values())
            if files:
                self._apply(apply, self._ledger.next_id - 1, files)
            elif once and self._caught_up:
                self._require_whole()
                return
            else:
                _wait(_POLL_SECONDS if once else self._interval, stopping)
            if not once:
                listing = self._list(once=once)
            elif not files:
                listing = [entry for entry in self._list(once=once) if entry.name in self._waiting]

    def _list(self, *, once: bool) -> list[Entry]:
        """The files that are there. A place that is not there is waited for, but not by a run ``once``."""
        try:
            with self._watch.asking():
                return self._inputs.list()
        except InputMissing:
            if once:
                raise
            return []

    def lag(self) -> Lag:
        return Lag(0 if self._caught_up else None, self._caught_up)

    def from_its_beginning(self) -> Source:
        """The source, as a new checkpoint would read it."""
        return Source(files=self._source)

    def committed(self) -> Committed | None:
        return self._ledger.committed()

    def pending(self) -> Iterator[Batch]:
        return (self._batch(batch_id, files) for batch_id, files in self._ledger.pending())

    def close(self) -> None:
        """Nothing is held."""

    def _apply(
        self, apply: Callable[[DataFrame, Batch], None], batch_id: int, files: list[InputFile]
    ) -> None:
        uris, size = [self._inputs.uri(f.name) for f in files], sum(f.size for f in files)
        frame = read_records(self._spark, uris, size=size, base64=self._base64)
        apply(frame, self._batch(batch_id, files))
        faults.reach("before-checkpoint-commit")
        self._ledger.commit(batch_id, self._grown(batch_id, files, applied=True))

    def _batch(self, batch_id: int, files: Iterable[InputFile]) -> Batch:
        return Batch(self.query_id, batch_id, {"files": [[file.name, file.sha256] for file in files]})

    def _record_next(self, listing: list[Entry]) -> list[InputFile]:
        """The files of the next batch, recorded; empty when nothing new is there."""
        fresh: list[InputFile] = []
        skipped: list[InputFile] = []
        present = {entry.name for entry in listing}
        self._waiting = {name: each for name, each in self._waiting.items() if name in present}
        for entry in listing:
            file = self._look_at(entry, fresh)
            if file is not None:
                (skipped if file.same_as else fresh).append(file)
            if len(fresh) == self._limit:
                break
        if fresh:
            self._ledger.record(fresh, skipped)
        return fresh

    def _look_at(self, entry: Entry, fresh: list[InputFile]) -> InputFile | None:
        """The file if it is to be read; None for one that is known, changed, empty or not whole yet."""
        stamp = (entry.size, entry.mtime)
        known = self._ledger.files.get(entry.name)
        seen = self._looked_at.get(entry.name) or (known and (known.size, known.mtime))
        if entry.size == 0 or seen == stamp:
            return None
        try:
            if not self._is_whole(entry):
                return None
            if known is not None and not self._has_grown(known, entry):
                self._looked_at[entry.name] = stamp
                return None
            sha256 = self._inputs.sha256(entry.name, entry.size)
        except FileNotFoundError:  # it was there when the folder was listed
            return None
        if known is not None:
            self._warn(_grown_text(entry.name))
        self._looked_at[entry.name] = stamp
        same_as = self._ledger.by_hash.get(sha256) or next(
            (f.name for f in fresh if f.sha256 == sha256), None
        )
        if same_as is not None:
            self.skipped += 1
            self._warn(f"{entry.name} is skipped: {same_as} has the same content and is applied already")
        return InputFile(entry.name, entry.size, entry.mtime, sha256, same_as)

    def _has_grown(self, known: InputFile, entry: Entry) -> bool:
        """Whether a file that was applied has its former content at its beginning, and more."""
        if entry.size >= known.size and self._inputs.sha256(entry.name, known.size) == known.sha256:
            return entry.size > known.size
        self.changed += 1
        self._warn(
            f"{entry.name} has changed since it was applied; the new content is not applied. "
            "Give new records a file of their own"
        )
        return False

    def _is_whole(self, entry: Entry) -> bool:
        """Whether a file can be read; one that is still being copied waits."""
        stamp, now = (entry.size, entry.mtime), time.monotonic()
        waiting = self._waiting.get(entry.name)
        if waiting is None or waiting.stamp != stamp:
            reason = self._why_not(entry.name)
            if reason is not None:
                self._waiting[entry.name] = _IncompleteFile(stamp, reason, now)
                return False
        elif waiting.reason != _NO_END or now - waiting.since < _SETTLE_SECONDS:
            if now - waiting.since >= self._patience and not waiting.told:
                waiting.told = True
                self._warn(_incomplete_text(entry.name, waiting.reason))
            return False
        self._waiting.pop(entry.name, None)
        return True

    def _why_not(self, name: str) -> str | None:
        """Why a file cannot be read now; None if it can."""
        try:
            if name.endswith(".gz"):
                return None if self._inputs.storage().is_whole_gzip(name) else _CUT_OFF
            return None if self._inputs.storage().ends_in_newline(name) else _NO_END
        except PermissionError:
            return _UNREADABLE

    def _require_whole(self) -> None:
        """At the end of a run once: fail if there is a file that could not be read."""
        if self._waiting:
            raise InputIncomplete(
                "; ".join(_incomplete_text(name, each.reason) for name, each in sorted(self._waiting.items()))
            )

    def _grown(self, batch_id: int, files: list[InputFile], *, applied: bool = False) -> list[str]:
        """Files of a batch that have grown since it was recorded.

        Raises BatchMismatch for files with other content, and InputMissing for those that are gone before
        they were ``applied``.
        """
        grown = []
        for file in files:
            try:
                now = self._inputs.storage().stat(file.name)
                if applied and (now.size, now.mtime) == (file.size, file.mtime):
                    continue
                same = now.size >= file.size and self._inputs.sha256(file.name, file.size) == file.sha256
            except FileNotFoundError:
                if applied:
                    continue
                raise InputMissing(
                    f"{file.name} is gone, but batch {batch_id}, which was begun and not finished, needs it: "
                    "put it back"
                ) from None
            if not same:
                raise BatchMismatch(
                    f"{file.name} belongs to batch {batch_id}, which was begun and not finished, and has "
                    "changed since: put the former content back, and the new records into a file of their own"
                )
            if now.size > file.size:
                self._warn(_grown_text(file.name))
                grown.append(file.name)
        return grown


def _grown_text(name: str) -> str:
    return (
        f"{name} has grown since it was read, and is read again whole. Move a file into the folder once it "
        "is complete, and give new records a file of their own"
    )


def _incomplete_text(name: str, reason: str) -> str:
    if reason == _UNREADABLE:
        return f"{name} is skipped: {reason}. Allow it; the file is then read by itself"
    return (
        f"{name} is skipped: {reason}, and it does not change any more. Put the complete file in its place, "
        "under the same name; it is then read by itself"
    )


def read_records(spark: SparkSession, uris: list[str], *, size: int = 0, base64: bool = False) -> DataFrame:
    """The records of JSON Lines files, of so many bytes in all, as a frame of schema RAW; blank lines are
    left out.

    ``row`` counts lines from 0. (Of a file that Spark reads in several blocks, it is the block's first
    byte plus the line in the block: it grows along the file, but counts lines in the first block only.)
    """
    steps = _steps(base64)
    return reduce(lambda frame, columns: frame.select(*columns), steps, _lines(spark, uris, size))


@kept
def _steps(base64: bool) -> list[list[Column]]:
    """What is selected of lines, one list after the other."""
    fine = F.col("problem").isNull()

    def payload(name: str) -> Column:
        text = F.col(f"r.{name}")
        return F.try_to_binary(text, F.lit("base64")) if base64 else text.cast("binary")

    header = "struct(get(h, 0) AS key, CAST(get(h, 1) AS BINARY) AS value)"
    record = [
        F.when(fine, F.col("r.topic")).alias("topic"),
        F.when(fine, F.col("r.partition")).alias("partition"),
        F.when(fine, F.col("r.offset")).alias("offset"),
        F.when(fine & F.col("r.timestamp").between(0, _LAST_MILLIS), F.timestamp_millis("r.timestamp")).alias(
            "timestamp"
        ),
        F.when(fine, payload("key")).alias("key"),
        F.when(fine, payload("value")).otherwise(F.col("line").cast("binary")).alias("value"),
        F.when(fine, F.expr(f"transform(r.headers, h -> {header})")).alias("headers"),
        *map(F.col, ("file", "row", "problem")),
    ]
    problem = _problem(F.col("line"), F.col("r"), base64).alias("problem")
    return [[F.col("*"), _parsed(F.col("line")).alias("r")], [F.col("*"), problem], record]


def _lines(spark: SparkSession, uris: list[str], size: int) -> DataFrame:
    """line, file, row. Each task reads one block of one file, so that a task's row ids count its lines.

    The setting that keeps Spark from packing files together belongs to the session that reads, so
    it gets a session of its own; the plan is then taken over into the caller's.
    """
    reader = spark.newSession()
    reader.conf.set("spark.sql.files.openCostInBytes", str(2**40))
    # By the batch alone, so that a replay numbers its lines alike.
    block = min(max(size // 2 + 1, _LEAST_BLOCK), _BLOCK)
    reader.conf.set("spark.sql.files.maxPartitionBytes", block)
    # Many files are listed by a job: with a task a core, not with one a file.
    tasks = str(spark.sparkContext.defaultParallelism)
    reader.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", tasks)
    in_block = F.monotonically_increasing_id().bitwiseAND(F.lit(2**33 - 1))
    lines = reader.read.text([_literal(uri) for uri in uris], lineSep="\n").select(
        F.col("value").alias("line"),
        F.col("_metadata.file_path").alias("file"),
        (F.col("_metadata.file_block_start") + in_block).alias("row"),
    )
    view = f"lakemirror_lines_{uuid.uuid4().hex}"
    lines.createGlobalTempView(view)
    try:
        line = F.col("line")
        return spark.table(f"global_temp.{view}").where(line.startswith("{") | line.rlike(r"\S"))
    finally:
        spark.catalog.dropGlobalTempView(view)


def _parsed(line: Column) -> Column:
    # In an object of its own, so that text after the record (two records on one line) is an error too.
    schema = f"r STRUCT<{_struct_fields(_RECORD)}>, bad STRING"
    return F.from_json(
        F.concat(F.lit('{"r":'), line, F.lit("}")), schema, {"columnNameOfCorruptRecord": "bad"}
    ).getField("r")


def _problem(line: Column, record: Column, base64: bool) -> Column:
    """Why a line is not a record; null when it is one."""
    checks = [
        (~F.is_valid_utf8(line), "the line is not valid UTF-8"),
        (
            ~_begins(line) | record.isNull(),
            "the line is not a JSON object of a record",
        ),
    ]
    checks += [
        (record[name].isNull(), f"the record has no {name}") for name in ("topic", "partition", "offset")
    ]
    if base64:
        for name in ("key", "value"):
            text = record[name]
            undecodable = text.isNotNull() & F.try_to_binary(text, F.lit("base64")).isNull()
            checks.append((undecodable, f"{name} is not base64, as envelope.encoding: avro wants it"))
    return F.coalesce(*(F.when(condition, F.lit(text)) for condition, text in checks))


def _begins(line: Column) -> Column:
    return line.startswith("{") | line.rlike(r"^\s*\{")


def _struct_fields(ddl: str) -> str:
    return re.sub(r"(\w+) (\w+(?:<.*>)?)(, |$)", r"\1: \2\3", ddl)


def _literal(uri: str) -> str:
    """``uri`` with the characters escaped that Hadoop would take for a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", uri)


class _Inputs:
    """The files that ``path`` names: a folder, a pattern in the last part of the path, or one file."""

    def __init__(self, path: str, spark: SparkSession) -> None:
        self._path = path.rstrip("/") or "/"
        parent, _, self._last = self._path.rpartition("/")
        if _is_pattern(parent):
            raise LakemirrorError(
                f"spec.source.files.path: {path}: a pattern can stand in the last part of the path only"
            )
        self._parent = open_storage(parent or ("/" if path.startswith("/") else "."), spark)
        self._folder = open_storage(self._path, spark)

    def list(self) -> list[Entry]:
        """The files by name. InputMissing where there is no such place; a pattern may match nothing."""
        if self._is_folder():
            return [e for e in self._folder.list() if e.name.endswith(SUFFIXES) and e.name[0] not in "_."]
        found = [entry for entry in self._parent.list() if fnmatch.fnmatchcase(entry.name, self._last)]
        if not found and not (_is_pattern(self._last) and self._parent.is_folder("")):
            raise InputMissing(f"spec.source.files.path: there is no file or directory {self._path}")
        return found

    def sha256(self, name: str, first: int) -> str:
        """The hash of a file's ``first`` bytes."""
        return self.storage().sha256(name, first)

    def uri(self, name: str) -> str:
        return f"{self.storage().uri}/{name}"

    def storage(self) -> Storage:
        """Where the files are."""
        return self._folder if self._is_folder() else self._parent

    def _is_folder(self) -> bool:
        # Asked anew each time: a folder may appear while the pipeline waits for it.
        return not _is_pattern(self._last) and self._folder.is_folder("")


def _is_pattern(text: str) -> bool:
    return re.search(r"[*?\[]", text) is not None


class _Ledger:
    """What the checkpoint says of the batches: which files each has, and which are done."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._pending: dict[int, list[InputFile]] = {}
        self.files: dict[str, InputFile] = {}
        self.by_hash: dict[str, str] = {}
        self.next_id = 0

    @classmethod
    def load(cls, storage: Storage) -> _Ledger:
        ledger = cls(storage)
        compacted = max(_numbers(storage, "files/state"), default=-1)
        if compacted >= 0:
            ledger._remember(_files(storage, f"files/state/{compacted}.json"))
        done, grown = _numbers(storage, "files/commits"), _numbers(storage, "files/grown")
        for batch_id in sorted(_numbers(storage, "files/offsets")):
            if batch_id <= compacted:
                continue
            files = _files(storage, f"files/offsets/{batch_id}.json")
            ledger._remember(files)
            if batch_id in grown:
                ledger._forget(_grown_names(storage, batch_id))
            if batch_id not in done:
                ledger._pending[batch_id] = [file for file in files if file.same_as is None]
            ledger.next_id = batch_id + 1
        ledger.next_id = max(ledger.next_id, compacted + 1)
        return ledger

    def committed(self) -> Committed | None:
        """The last batch that is done."""
        done = _numbers(self._storage, "files/commits") | _numbers(self._storage, "files/state")
        if not done:
            return None
        last = max(done)
        names = (f"files/{folder}/{last}.json" for folder in ("commits", "state"))
        name = next(name for name in names if self._storage.exists(name))
        return Committed(last, from_millis(self._storage.stat(name).mtime))

    def pending(self) -> list[tuple[int, list[InputFile]]]:
        return sorted(self._pending.items())

    def record(self, fresh: list[InputFile], skipped: list[InputFile]) -> None:
        """Write down the next batch."""
        batch_id = self.next_id
        document = {"recordedAt": _now(), "files": [asdict(file) for file in [*fresh, *skipped]]}
        if not self._storage.write_text_new(f"files/offsets/{batch_id}.json", json.dumps(document) + "\n"):
            raise CheckpointInUse(
                f"batch {batch_id} of the checkpoint {self._storage.uri} was begun by another driver: "
                "stop that driver, or give this pipeline a checkpoint of its own"
            )
        self._remember([*fresh, *skipped])
        self._pending[batch_id] = fresh
        self.next_id = batch_id + 1

    def abandon(self, batch_id: int) -> None:
        """Take the batch for done, and its files for files that were not read."""
        self.commit(batch_id, [file.name for file in self._pending[batch_id]])

    def commit(self, batch_id: int, grown: Sequence[str] = ()) -> None:
        """Note that the batch was applied, but for files that are to be read again."""
        if grown:
            text = json.dumps({"files": list(grown)}) + "\n"
            self._storage.write_text(f"files/grown/{batch_id}.json", text)
            self._forget(grown)
        self._storage.write_text(f"files/commits/{batch_id}.json", json.dumps({"committedAt": _now()}) + "\n")
        del self._pending[batch_id]
        if (batch_id + 1) % COMPACT_EVERY == 0 and not self._pending:
            self._compact(batch_id)

    def _compact(self, batch_id: int) -> None:
        document = {"files": [asdict(file) for file in self.files.values()]}
        self._storage.write_text(f"files/state/{batch_id}.json", json.dumps(document) + "\n")
        for folder, last in (
            ("offsets", batch_id),
            ("commits", batch_id),
            ("grown", batch_id),
            ("state", batch_id - 1),
        ):
            for old in _numbers(self._storage, f"files/{folder}"):
                if old <= last:
                    self._storage.delete(f"files/{folder}/{old}.json")

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            file = self.files.pop(name, None)
            if file is not None and self.by_hash.get(file.sha256) == name:
                del self.by_hash[file.sha256]

    def _remember(self, files: Iterable[InputFile]) -> None:
        for file in files:
            self.files[file.name] = file
            self.by_hash.setdefault(file.sha256, file.name)


def _files(storage: Storage, name: str) -> list[InputFile]:
    try:
        document: dict[str, Any] = json.loads(storage.read_text(name))
        return [InputFile(**file) for file in document["files"]]
    except (ValueError, TypeError, KeyError) as error:
        raise LakemirrorError(f"{storage.uri}/{name} is damaged ({error}): restore it from a copy") from None


def _grown_names(storage: Storage, batch_id: int) -> list[str]:
    name = f"files/grown/{batch_id}.json"
    try:
        return [str(each) for each in json.loads(storage.read_text(name))["files"]]
    except (ValueError, TypeError, KeyError) as error:
        raise LakemirrorError(f"{storage.uri}/{name} is damaged ({error}): restore it from a copy") from None


def _numbers(storage: Storage, folder: str) -> set[int]:
    stems = (entry.name.removesuffix(".json") for entry in storage.list(folder))
    return {int(stem) for stem in stems if stem.isdecimal()}


def _wait(seconds: float, stopping: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while not stopping() and time.monotonic() < end:
        time.sleep(min(_POLL_SECONDS, seconds))


def _now() -> str:
    return iso(datetime.now(UTC))
