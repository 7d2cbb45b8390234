"""Measures what a batch, a start, a replay and a collection cost on the state that a year of batches leaves.

The state is made, not run: logs as long as they are after a year, tables of our own as compacted as they are,
an audit that has each batch of its retention, and a quarantine full of closed records. Beside it is a fresh
pipeline with the same tables. The input is not part of it: Kafka has what its own retention says, and a
folder of files costs what it holds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import statistics
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.markdown import table
from benchmarks.options import Options
from benchmarks.records import Change, image, key_text, line, value
from lakemirror.api import CdcPipeline
from lakemirror.api.object_stores import LOCAL_LOG_STORE
from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.java import java_class
from lakemirror.driver.record import audit, history, quarantine
from lakemirror.driver.record.history import AuditHistory
from lakemirror.driver.runtime import maintenance
from lakemirror.driver.runtime.events import BatchDone, BatchStarted, Event
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.runtime.runner import run as run_pipeline
from lakemirror.driver.tables.housekeeping import Task
from lakemirror.driver.tables.tombstones import TYPES
from tests.support import object_store

TITLE = "A year later"
FRESH, OLD = "fresh", "after a year"
BAD = "batch with a bad record"
MEASURED = ("start", "batch", BAD, "replay", "collection")
"""What is measured. A start is one with its first batch, and a batch is one that comes later."""
MOST = 1.3
"""How many times as long something may take after a year."""
DAY = 8_640
"""How many batches a day has, at an interval of 10 s."""
REQUEST_SECONDS = 0.02
ON_STORE = 20
"""How many tables there are on S3: each request takes its time, and a start looks at all tables."""
_OTHERS = 4
"""How many tables each batch changes, besides the one that all batches change."""
_AUDIT_DAYS = 30
_BATCHES = 4
"""How many batches a round has."""
_LONG_AGO = {"retention": "3650d"}
_CHECKPOINTS = {"mirror": 30, "side": 100}
_UNCOMPACTED = max(maintenance.MANY_FILES, round(maintenance.TENDED_EVERY_SECONDS / 10)) // 2
"""How many files a table of our own has got since it was last compacted, half of what it has just before."""
_CLOSED = 20_000
"""How many closed records the quarantine has."""

_TAGGED = 200
"""Of how many of the newest versions of a log the files have ETags. Nobody reads the others."""
_LATER = 60
"""How many seconds a checkpoint is later than the one before it."""

Measured = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Place:
    """Where a pipeline keeps its state: as the pipeline names it, and as files of this machine.

    ``asked`` returns how many requests a store of objects has had, or how often local logs were listed.
    ``checksums`` says that each file has a hidden one with its checksum, as Hadoop's local files have.
    ``tags`` is where the server keeps the ETags of objects, if it does.
    """

    uri: str
    files: Path
    asked: Callable[[], int]
    checksums: bool
    tags: Path | None = None

    def tag(self) -> None:
        """Give the newest files, which no client has put, the ETags on which Hadoop insists."""
        if self.tags is None:
            return
        for folder, _, names in os.walk(self.files):
            is_log = folder.endswith("_delta_log")
            newest = max(map(_number, names), default=0) if is_log else 0
            for name in names:
                if is_log and 0 <= _number(name) < newest - _TAGGED:
                    continue
                file = Path(folder, name)
                content = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
                tag = self.tags / file.relative_to(self.files) / "meta/etag"
                tag.parent.mkdir(parents=True, exist_ok=True)
                tag.write_text(f'"{content}"')


def _number(name: str) -> int:
    """Return the version that a file of a log belongs to, or -1 if it belongs to none."""
    digits = name.partition(".")[0]
    return int(digits) if digits.isdigit() else -1


class Lane:
    """A pipeline with its tables. The input is in a folder, the state in a place."""

    def __init__(self, spark: SparkSession, place: Place, folder: Path, tables: int) -> None:
        self.spark, self.place, self.tables, self._input = spark, place, tables, folder / "input"
        self._sent = 0
        self._input.mkdir(parents=True)

    def uri(self, number: int) -> str:
        return f"{self.place.uri}/lake/t{number}"

    @property
    def checkpoint(self) -> str:
        return f"{self.place.uri}/checkpoint"

    def files(self, uri: str) -> Path:
        """Return where the files of a path of this place are."""
        return self.place.files / uri.removeprefix(f"{self.place.uri}/")

    def pipeline(self, **more: Any) -> CdcPipeline:
        spec = {
            "source": {"files": {"path": str(self._input), "format": "records", "maxFilesPerBatch": 1}},
            "envelope": {"format": "debezium", "encoding": "json"},
            "target": {"path": f"{self.place.uri}/lake/{{table}}"},
            "checkpoint": self.checkpoint,
            "trigger": {"availableNow": True},
            "tombstones": _LONG_AGO,
            **more,
        }
        kind = {"apiVersion": "lakemirror.io/v1alpha1", "kind": "CdcPipeline", "metadata": {"name": "year"}}
        return CdcPipeline.from_yaml(yaml.safe_dump({**kind, "spec": spec}))

    def send(self, changes: Mapping[int, str], key: int = 1, *, bad: bool = False) -> None:
        """Write a file with one change (create or delete) of each of some tables."""
        at = 1_772_000_000_000_000 + self._sent * 10_000_000
        lines = []
        for number, op in changes.items():
            name, lsn = f"t{number}", 1_000 + self._sent * 1_000 + number
            row = image(key, ['"a"', "1", '"b"', '"2026-01-01T00:00:00.000000Z"'])
            change = Change(name, op, lsn, lsn, at, f'["{lsn - 1}","{lsn}"]')
            text = value(change, row if op == "d" else "null", "null" if op == "d" else row, None)
            written = "{" if bad else text
            lines.append(line(name, (0, self._sent), at, key_text(name, key, False), written))
        (self._input / f"{self._sent:08d}.jsonl").write_text("".join(lines))
        self._sent += 1

    def run(self, **more: Any) -> Measured:
        """Apply what is there. Returns what the start, the last batch and the collection took and asked."""
        began, marks = self._now(), [self._now()]
        batches: list[dict[str, float]] = []
        collected: list[dict[str, float]] = []
        found: Measured = {}

        def note(event: Event) -> None:
            if isinstance(event, BatchStarted):
                marks.append(self._now())
            elif isinstance(event, BatchDone):
                found.setdefault("start", _between(began, self._now()))
                batches.append(_between(marks[-1], self._now()))

        def applier(spark: SparkSession, pipeline: CdcPipeline, query: str, history: AuditHistory) -> Any:
            return _Timed(spark, pipeline, query, history, now=self._now, collected=collected)

        pipeline = self.pipeline(**more)
        summary = run_pipeline(pipeline, once=True, spark=self.spark, on_event=note, make_applier=applier)
        if summary.held:
            raise RuntimeError(f"tables are held: {summary.held}")
        if batches[1:]:
            later = batches[1:]
            found["batch"] = {name: statistics.median(each[name] for each in later) for name in later[0]}
        if collected:
            found["collection"] = collected[-1]
        return found

    def replay(self) -> dict[str, float]:
        """Replay what is open, and return what that took and asked."""
        began = self._now()
        replay(self.pipeline(), spark=self.spark)
        return _between(began, self._now())

    def discard(self) -> None:
        """Close what is open."""
        replay(self.pipeline(), spark=self.spark, discard=True)

    def forget_logs(self) -> None:
        """Have Delta read all logs again, as in a new process."""
        java_class(self.spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()

    def _now(self) -> dict[str, float]:
        return {"seconds": time.monotonic(), "asked": float(self.place.asked())}

    def size(self) -> dict[str, int]:
        """Return how many files and bytes there are, and how many files in logs."""
        found = {"files": 0, "logs": 0, "bytes": 0}
        for folder, _, names in os.walk(self.place.files):
            found["files"] += len(names)
            found["logs"] += len(names) if "_delta_log" in folder else 0
            found["bytes"] += sum(os.stat(f"{folder}/{name}").st_size for name in names)
        return found


class _Timed(BatchApplier):
    """Notes what collections take."""

    def __init__(
        self, *given: Any, now: Callable[[], dict[str, float]], collected: list[dict[str, float]]
    ) -> None:
        super().__init__(*given)
        self._now, self._collected = now, collected

    def collect_tombstones(self, *, had_all_at: datetime | None) -> int:
        began = self._now()
        number = super().collect_tombstones(had_all_at=had_all_at)
        if number:
            self._collected.append(_between(began, self._now()))
        return number


def _between(began: Mapping[str, float], ended: Mapping[str, float]) -> dict[str, float]:
    return {name: ended[name] - began[name] for name in began}


def run(options: Options) -> dict[str, Any]:
    """Measure both in turn, on local files and, if its server is there, on S3 with 20 ms for a request."""
    tables = options.tables or (6 if options.quick else 500)
    day, rounds = (200, 1) if options.quick else (DAY, options.warm or 5)
    on_store = min(tables, ON_STORE)
    with_store = object_store.found() is not None
    if with_store:
        os.environ.setdefault("LAKEMIRROR_OBJECT_STORES", "s3")
    found = {}
    with options.folder("year") as folder, options.session() as spark:
        found["local"] = _compare(spark, folder / "local", partial(_local, spark), tables, day, rounds)
        print(_section("local", found["local"]), flush=True)
        if with_store:
            with object_store.start_store(folder / "store") as store:
                place = partial(_on_store, spark, store)
                found["S3"] = _compare(spark, folder / "s3", place, on_store, day, rounds)
    return {"day": day, "kinds": found}


def _compare(
    spark: SparkSession, folder: Path, place: Callable[[Path], Place], tables: int, day: int, rounds: int
) -> dict[str, Any]:
    lanes = {}
    for name in (FRESH, OLD):
        inner = folder / name.replace(" ", "-")
        lanes[name] = lane = Lane(spark, place(inner), inner, tables)
        begin(lane)
    began = time.monotonic()
    age(lanes[OLD], day)
    made = time.monotonic() - began
    sizes = {name: lane.size() for name, lane in lanes.items()}
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        what: {name: [] for name in lanes} for what in MEASURED
    }
    for number in range(rounds + 1):
        turns = list(lanes.items())
        for name, lane in turns if number % 2 == 0 else reversed(turns):
            for what, measured in measure(lane, number).items():
                if number:  # the first round warms up
                    found[what][name].append(measured)
    return {"tables": tables, "made": round(made, 1), "sizes": sizes, "found": found}


def _local(spark: SparkSession, folder: Path) -> Place:
    def listings() -> int:
        counts = java_class(spark, LOCAL_LOG_STORE).listed().values()
        return sum(int(str(each)) for each in counts)

    return Place(str(folder / "files"), folder / "files", listings, checksums=True)


def _on_store(spark: SparkSession, store: object_store.Store, folder: Path) -> Place:
    """Return a bucket whose server waits for 20 ms before each answer."""
    bucket = store.bucket(f"year-{folder.name}")
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    for name, given in bucket.hadoop().items():
        settings.set(name, given)
        spark.conf.set(name, given)
    bucket.proxy.slow_seconds = REQUEST_SECONDS
    place = Place(bucket.uri, bucket.files, lambda: bucket.proxy.requests, checksums=False)
    return replace(place, tags=bucket.etags)


def begin(lane: Lane) -> None:
    """Make the tables of a fresh pipeline: two of them by batches, and the others as copies of the second."""
    lane.send({0: "c", 1: "c"})
    lane.send({0: "c"}, key=2)
    lane.send({0: "d"}, key=2)
    lane.send({0: "c"}, key=3, bad=True)
    lane.run()
    lane.discard()
    for number in range(2, lane.tables):
        _copy(lane, number)
    known = lane.files(lane.checkpoint) / history.FILE
    document = json.loads(known.read_text("utf-8"))
    name, told = next((each, told) for each, told in document["tables"].items() if each.endswith(".t1"))
    for query in document["queries"].values():
        streams = query.get("positions", [])
        streams += [
            json.loads(_renamed(json.dumps(each), number))
            for each in streams
            if each[0][0].endswith(".t1")
            for number in range(2, lane.tables)
        ]
    for number in range(2, lane.tables):
        document["tables"][_renamed(name, number)] = json.loads(_renamed(json.dumps(told), number))
    _write(known, json.dumps(document))
    lane.place.tag()
    lane.run()


def _copy(lane: Lane, number: int) -> None:
    """Make a table that is like the second one."""
    folder = lane.files(lane.uri(number))
    shutil.copytree(lane.files(lane.uri(1)), folder, ignore=shutil.ignore_patterns(".*.crc"))
    for file in (folder / "_delta_log").glob("*[0-9].*"):
        file.write_text(_renamed(file.read_text("utf-8"), number), "utf-8")


def _renamed(text: str, number: int) -> str:
    return re.sub(r"\bt1\b", f"t{number}", text)


def _write(file: Path, text: str) -> None:
    """Write a file anew, without the checksum and the attributes of an earlier one."""
    file.unlink(missing_ok=True)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.write_text(text, "utf-8")


def measure(lane: Lane, number: int) -> Measured:
    """Return the seconds and the requests of each thing that is measured."""
    lane.forget_logs()
    for each in range(_BATCHES):
        round_ = number * _BATCHES + each
        lane.send(dict.fromkeys(changed(lane.tables, round_), "c"), key=10 + round_)
    lane.send({0: "d"}, key=10 + number * _BATCHES)
    found = lane.run()
    lane.send({0: "c"}, key=10 + number * _BATCHES)
    lane.send({0: "c"}, key=2, bad=True)
    found[BAD] = lane.run()["batch"]
    lane.forget_logs()
    found["replay"] = lane.replay()
    lane.discard()
    lane.send({0: "c"}, key=10 + number * _BATCHES + 1)
    found["collection"] = lane.run(tombstones={"retention": "1ms"})["collection"]
    return found


def changed(tables: int, number: int) -> list[int]:
    """Return the tables that a batch changes: the first one, and some others in turn."""
    others = {1 + (number * _OTHERS + each) % (tables - 1) for each in range(min(_OTHERS, tables - 1))}
    return [0, *sorted(others)]


# -- a year --------------------------------------------------------------------------------------------


def age(lane: Lane, day: int) -> None:
    """Make the state of a pipeline what it is after a year of batches, each of some tables.

    The log of a mirror has a week, that of a table of our own a day. Our own tables have a compacted file and
    half as many others as lead to the next compaction.
    """
    spark, kept = lane.spark, {}
    of_others = min(1.0, _OTHERS / max(1, lane.tables - 1))
    versions: dict[int, int] = {}
    second = _State.of(lane, lane.uri(1))
    for number in range(lane.tables):
        uri, share = lane.uri(number), of_others if number else 1.0
        lasts = round(365 * day * share)
        state = second.renamed(number) if number else _State.of(lane, uri)
        versions[number] = _age_log(lane, uri, state, lasts, round(7 * day * share), "mirror")
        kept[uri] = lasts
        side = f"{uri}/_tombstones"
        if lane.files(side).is_dir():
            _facts(spark, 10_000).union(_collected(spark)).coalesce(1).write.format("delta").mode(
                "append"
            ).save(side)
            _facts(spark, _UNCOMPACTED).repartition(_UNCOMPACTED).write.format("delta").mode("append").save(
                side
            )
            aged = _State.of(lane, side)
            kept[side] = _age_log(lane, side, aged, lasts, round(day * share), "side")
    _audit(lane, versions, _AUDIT_DAYS * day)
    _quarantine(lane)
    for place in (audit.path(lane.checkpoint), quarantine.path(lane.checkpoint)):
        state = _State.of(lane, place)
        kept[place] = _age_log(lane, place, state, 365 * day // 3, day // 3, "side")
    _remember(lane, versions, kept[audit.path(lane.checkpoint)], kept)
    lane.place.tag()
    java_class(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()


def _remember(lane: Lane, versions: Mapping[int, int], audited: int, kept: Mapping[str, int]) -> None:
    """Make the small files of the checkpoint what they are after a year."""
    folder = lane.files(lane.checkpoint)
    document = json.loads((folder / history.FILE).read_text("utf-8"))
    for name, told in document["tables"].items():
        told["version"] = versions[int(name.rpartition(".t")[2])]
    _write(folder / history.FILE, json.dumps({**document, "version": audited}))
    now = datetime.now(UTC).isoformat()
    _write(folder / maintenance.FILE, json.dumps({path: {task.value: now for task in Task} for path in kept}))


@dataclass(frozen=True)
class _State:
    """The newest state of a table, as its log has it: a version, and its checksum and checkpoint."""

    version: int
    checksum: str
    checkpoint: pa.Table

    @classmethod
    def of(cls, lane: Lane, uri: str) -> _State:
        log, spark = lane.files(uri) / "_delta_log", lane.spark
        logs = java_class(spark, "org.apache.spark.sql.delta.DeltaLog")
        delta_log = logs.forTable(spark._jsparkSession, uri)
        nothing = java_class(spark, "scala.Option").empty()
        delta_log.checkpoint(delta_log.update(False, nothing, nothing), nothing)
        last = max(int(file.stem) for file in log.glob("*.json") if file.stem.isdigit())
        checkpoint = pq.read_table(log / f"{last:020d}.checkpoint.parquet")
        return cls(last, (log / f"{last:020d}.crc").read_text("utf-8"), checkpoint)

    def renamed(self, number: int) -> _State:
        """Return the state of a table that is like the second one."""
        rows = [_renamed_in(row, number) for row in self.checkpoint.to_pylist()]
        made = pa.Table.from_pylist(rows, schema=self.checkpoint.schema)
        return _State(self.version, _renamed(self.checksum, number), made)


def _renamed_in(value: Any, number: int) -> Any:
    if isinstance(value, str):
        return _renamed(value, number)
    if isinstance(value, dict):
        return {name: _renamed_in(each, number) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_renamed_in(each, number) for each in value)
    return value


def _age_log(lane: Lane, uri: str, state: _State, year: int, kept: int, kind: str) -> int:
    """Move the newest state of a log to a late version, after so many that are kept. Returns the version.

    The versions in between change nothing. So the checkpoint and the checksum of the newest state are theirs.
    """
    log = lane.files(uri) / "_delta_log"
    every, moment = _CHECKPOINTS[kind], int(time.time() * 1000)
    until = state.version + year
    first = max(state.version + 1, until - kept)
    first += -first % every
    info = {"commitInfo": {"timestamp": moment, "operation": "STREAMING UPDATE", "operationParameters": {}}}
    made = [log / "year.json", log / "year.crc", log / "year.checkpoint.parquet"]
    made[0].write_text(json.dumps(info) + "\n", "utf-8")
    made[1].write_text(state.checksum, "utf-8")
    pq.write_table(state.checkpoint, made[2])
    for number, file in enumerate(made):
        _link(lane, file, range(first, until + 1, every if number == 2 else 1))
    _date([log / f"{first + n * every:020d}.checkpoint.parquet" for n in range(1, 5)], moment / 1000)
    for file in [each for each in log.iterdir() if _version(each.name) < first]:
        file.unlink()
    told = {"version": until - until % every, "size": state.checkpoint.num_rows}
    _write(log / "_last_checkpoint", json.dumps(told))
    return until


def _link(lane: Lane, file: Path, versions: range) -> None:
    """Give a file the names that it has at versions, with the hidden files of its checksums."""
    hidden = file.with_name(f".{file.name}.crc")
    if lane.place.checksums:
        hidden.write_bytes(_checksum(file.read_bytes()))
    for version in versions:
        name = f"{version:020d}{file.name.removeprefix('year')}"
        os.link(file, file.with_name(name))
        if lane.place.checksums:
            os.link(hidden, file.with_name(f".{name}.crc"))
    file.unlink()
    hidden.unlink(missing_ok=True)


def _date(checkpoints: Sequence[Path], now: float) -> None:
    """Let the first checkpoints of a log be later than what stands before them, unlike all that are links.

    Delta looks for expired files from one such checkpoint to the next.
    """
    for number, file in enumerate(each for each in checkpoints if each.exists()):
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content)
        os.utime(file, (now + (number + 1) * _LATER,) * 2)


def _checksum(content: bytes) -> bytes:
    """Return what Hadoop's local files keep beside a file (ChecksumFileSystem)."""
    parts = (content[start : start + 512] for start in range(0, len(content), 512))
    return (
        b"crc\0" + (512).to_bytes(4, "big") + b"".join(zlib.crc32(each).to_bytes(4, "big") for each in parts)
    )


def _version(name: str) -> int:
    """Return the version that a file of a log belongs to, or a high one if it belongs to none."""
    number = _number(name.lstrip("."))
    return number if number >= 0 else 1 << 62


def _facts(spark: SparkSession, number: int) -> DataFrame:
    """Return tombstones of that many keys, which no collection takes yet: their time is to come."""
    given = {
        "kind": F.lit("deleted"),
        "key": F.concat(F.lit('["gone-'), F.col("id"), F.lit('"]')),
        "seq": F.unhex(F.lpad(F.hex("id"), 52, "0")),
        "at": F.current_timestamp() + F.expr("INTERVAL 1 DAY"),
        "topic": F.lit("none"),
        "batch": F.col("id"),
    }
    return spark.range(number).select(_of_facts(given))


def _collected(spark: SparkSession) -> DataFrame:
    """Return what a collection leaves. It is old, so the file that has it is read by the next one."""
    at = F.current_timestamp() - F.expr("INTERVAL 1 DAY")
    given = {"kind": F.lit("collected"), "seq": F.unhex(F.lpad(F.hex("id"), 52, "0")), "at": at}
    return spark.range(1).select(_of_facts({**given, "topic": F.lit("none"), "batch": F.lit(-1)}))


def _of_facts(given: Mapping[str, Column]) -> list[Column]:
    return [given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in TYPES.items()]


def _audit(lane: Lane, versions: Mapping[int, int], batches: int) -> None:
    """Add the rows of the batches of the retention to the audit, and a row for each table of those before."""
    spark, checkpoint = lane.spark, lane.checkpoint
    stored = spark.read.format("delta").load(audit.path(checkpoint))
    of_table = stored.where("source IS NOT NULL AND target IS NOT NULL").limit(1).localCheckpoint()
    whole = stored.where("source IS NULL").limit(1).localCheckpoint()
    numbers = spark.range(batches).withColumnRenamed("id", "number")
    changed_tables = min(_OTHERS + 1, lane.tables)
    each = numbers.crossJoin(spark.range(changed_tables))
    at = F.timestamp_seconds(F.unix_timestamp() - (batches - F.col("number")) * 10)

    def rows(of: DataFrame, beside: DataFrame) -> DataFrame:
        made = beside.crossJoin(of.drop("query_id", "batch_id", "committed_at", "positions"))
        return made.withColumns(
            {
                "query_id": F.lit("before"),
                "batch_id": F.col("number"),
                "committed_at": at,
                "positions": F.lit(None),
                "checked": F.lit(None),
                "first_seq": F.when(F.col("source").isNotNull(), F.sha2(F.col("number").cast("string"), 224)),
                "version": F.when(F.col("source").isNotNull(), F.col("number")),
            }
        )

    sums = spark.range(len(versions)).withColumns({"number": F.lit(0), "table": F.col("id")})
    summed = rows(of_table, sums).withColumns(
        {
            "source": F.concat(F.lit("bench.public.t"), "table"),
            "target": F.concat(F.lit(f"{lane.place.uri}/lake/t"), "table"),
            "since": F.current_timestamp() - F.expr("INTERVAL 365 DAYS"),
        }
    )
    for frame in (rows(whole, numbers), rows(of_table, each), summed):
        columns = [F.col(name).cast(stored.schema[name].dataType) for name in stored.columns]
        frame.select(columns).coalesce(4).write.format("delta").mode("append").save(audit.path(checkpoint))


def _quarantine(lane: Lane) -> None:
    """Add closed records of the time for which they are kept."""
    spark, checkpoint = lane.spark, lane.checkpoint
    stored = spark.read.format("delta").load(quarantine.path(checkpoint))
    one = stored.limit(1).localCheckpoint().drop("id", "state", "quarantined_at")
    made = spark.range(_CLOSED).select(F.sha2(F.col("id").cast("string"), 256).alias("id")).crossJoin(one)
    closed = made.withColumns({"state": F.lit("replayed"), "quarantined_at": F.lit(datetime.now(UTC))})
    closed.select(*stored.columns).coalesce(4).write.format("delta").mode("append").save(
        quarantine.path(checkpoint)
    )


# -- the report ------------------------------------------------------------------------------------------


def text(figures: dict[str, Any]) -> str:
    """Return tables of the medians of both, and of their sizes, for each kind of place."""
    about = (
        f"{figures['day']:,} batches a day for a year. Each batch changes one "
        f"and the same table and {_OTHERS} others in turn. A ratio of at most {MOST} is aimed at. Medians of "
        "the rounds, and of the ratios of each, in turn, in one process, with the logs read anew for each "
        "start and replay. A start has its first batch, and a batch is a later one. On local files, the "
        "listings of logs are counted, and on S3 all requests, each of which takes 20 ms more. The server "
        "there walks a whole folder for each listing, so that the requests say more than the seconds."
    )
    return "\n\n".join([about, *(_section(kind, found) for kind, found in figures["kinds"].items())])


def _section(kind: str, found: dict[str, Any]) -> str:
    return f"**{kind}, {found['tables']} tables**\n\n{_times(found)}\n\n{_sizes(found['sizes'])}"


def median(measured: Sequence[Mapping[str, float]], part: str) -> float:
    """Return the median of what was measured in all rounds: of ``seconds``, or of what was ``asked``."""
    return float(statistics.median(each[part] for each in measured))


def times(measured: Mapping[str, Sequence[Mapping[str, float]]]) -> float:
    """Return how many times as long something takes after a year: the median of the rounds' ratios."""
    old, fresh = ([each["seconds"] for each in measured[name]] for name in (OLD, FRESH))
    return float(statistics.median(many / few for many, few in zip(old, fresh, strict=True)))


def _times(figures: dict[str, Any]) -> str:
    lines = []
    for what in MEASURED:
        each = figures["found"][what]
        fresh, old = (f"{median(each[name], 'seconds'):.2f}" for name in (FRESH, OLD))
        asked = (f"{median(each[name], 'asked'):.0f}" for name in (FRESH, OLD))
        lines.append([what, fresh, old, f"{times(each):.2f}", *asked])
    return table(("", f"s, {FRESH}", f"s, {OLD}", "ratio", f"asked, {FRESH}", f"asked, {OLD}"), lines)


def _sizes(sizes: Mapping[str, Mapping[str, int]]) -> str:
    lines = [
        [name, *(f"{size[part]:,}" for part in ("files", "logs", "bytes"))] for name, size in sizes.items()
    ]
    return table(("", "files", "of these in logs", "bytes"), lines)


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Return no plots."""
    return {}
