"""Each thing that is kept on disk, alone missing, from another copy, or another pipeline's.

The rows of the table in ARCHITECTURE.md (What stands on disk) are the cases here.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.checkpoint import identity, tokens
from lakemirror.driver.checkpoint.layout import NewerLayout
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.possession import AnotherPipeline, ensured
from lakemirror.driver.checkpoint.storage import LocalStorage, local_path
from lakemirror.driver.errors import CheckpointInUse, LakemirrorError
from lakemirror.driver.java import java_class
from lakemirror.driver.read.files.ledger import InputFile, Ledger
from lakemirror.driver.read.markers import Markers
from lakemirror.driver.read.offset_log import OffsetLog
from lakemirror.driver.record.history import AuditHistory, from_text, to_text
from lakemirror.driver.runtime.cleanup import delete_data
from lakemirror.driver.runtime.summary import RunSummary
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record
from tests.support.shop import Shop, table

pytestmark = pytest.mark.guarantee(
    "Nothing that is kept on disk is taken for something else if it is missing, older, newer or another "
    "pipeline's"
)

ROOT = Path(__file__).parents[2]
V = Column("v", "int32")
LATE, LOST, NEW = table("late", V), table("lost", V), table("new", V)


# -- what a driver finds out before it starts Spark -------------------------------------------------


@dataclass
class Kept:
    """A checkpoint of a files source with two batches that are done, and what is done to it."""

    folder: Path

    @property
    def storage(self) -> LocalStorage:
        return LocalStorage(self.folder)

    def ledger(self) -> Ledger:
        return Ledger.load(self.storage, lambda name: "")

    def made(self) -> Kept:
        with Owner(self.storage):
            ensured(self.storage, "shop")
        tokens.begin(self.storage, self.manifest())
        query = identity.query_id(self.storage, "files", started=False)
        for name in ("a", "b"):
            ledger = self.ledger()
            ledger.record([InputFile(name, 1, 1, name)], [], query)
            ledger.commit(ledger.next_id - 1)
        return self

    def manifest(self, **spark: str) -> Any:
        settings = {"tables": [{"source": "public.late", "resyncToken": "1"}], "spark": spark}
        return Mirroring(self.folder.parent / "pipeline", settings).pipeline.spec

    def start(self) -> Ledger:
        """What a driver does before it asks for a session, and when it opens its source."""
        with Owner(self.storage):
            ensured(self.storage, "shop")
            self.wanted = tokens.begin(self.storage, self.manifest())
        ledger = self.ledger()
        identity.query_id(self.storage, "files", started=ledger.next_id > 0)
        ledger.require_known()
        return ledger

    def remove(self, *names: str) -> None:
        for name in names:
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()


Harm = Callable[[Kept], None]
Outcome = Callable[[Kept], None]


def raises(kind: type[Exception], match: str) -> Outcome:
    def check(kept: Kept) -> None:
        with pytest.raises(kind, match=match):
            kept.start()

    return check


def goes_on(*, known: set[str], next_id: int, pending: int = 0, again: bool = False) -> Outcome:
    """The driver starts with these files, the next number, and with tables to read again or none."""

    def check(kept: Kept) -> None:
        ledger = kept.start()
        assert (set(ledger.files), ledger.next_id, len(ledger.pending())) == (known, next_id, pending)
        assert bool(kept.wanted) == again

    return check


def _other_metadata(kept: Kept) -> None:
    """That of another reading, from before a reset or after it."""
    text = json.loads((kept.folder / "metadata.json").read_text())
    (kept.folder / "metadata.json").write_text(json.dumps({**text, "queryId": "other"}))


def _newer_marker(kept: Kept) -> None:
    kept.storage.write_text("files/commits/4.json", "{}")


def _woken_driver(kept: Kept) -> None:
    """A driver that was asleep in a batch while the checkpoint was reset marks it as done."""
    kept.storage.write_text("files/commits/2.json", json.dumps({"id": "x", "query": "before"}))


def _as(name: str, text: str) -> Harm:
    return lambda kept: kept.storage.write_text(name, text)


def _gone(*names: str) -> Harm:
    return lambda kept: kept.remove(*names)


def _resynced(kept: Kept) -> None:
    tokens.resynced(kept.storage, {"public.late": "1"}, kept.manifest())


BOTH = {"a", "b"}
STARTS: list[tuple[str, str, Harm, Outcome]] = [
    ("owner/", "missing", _gone("owner"), goes_on(known=BOTH, next_id=2)),
    ("layout.json", "missing", _gone("layout.json"), goes_on(known=BOTH, next_id=2)),
    ("layout.json", "newer", _as("layout.json", '{"layout": 99}'), raises(NewerLayout, "newer version")),
    ("checkpoint.json", "missing", _gone("checkpoint.json"), goes_on(known=BOTH, next_id=2)),
    (
        "checkpoint.json",
        "another's",
        _as("checkpoint.json", '{"id": "x", "pipeline": "other"}'),
        raises(AnotherPipeline, "the checkpoint of the pipeline other, and this is shop"),
    ),
    ("metadata.json", "missing", _gone("metadata.json"), raises(LakemirrorError, "metadata.json is gone")),
    ("metadata.json", "older", _other_metadata, raises(LakemirrorError, "metadata.json of other")),
    ("tokens.json", "missing", _gone("tokens.json"), goes_on(known=BOTH, next_id=2, again=True)),
    ("files/", "records missing", _gone("files/offsets/1.json"), goes_on(known={"a"}, next_id=2)),
    ("files/", "all records missing", _gone("files/offsets"), goes_on(known=set(), next_id=2)),
    ("files/", "markers missing", _gone("files/commits"), goes_on(known=BOTH, next_id=2, pending=2)),
    ("files/", "markers newer", _newer_marker, goes_on(known=BOTH, next_id=5)),
    ("files/", "another's marker", _woken_driver, goes_on(known=BOTH, next_id=3)),
]


@pytest.mark.parametrize(
    ("harm", "outcome"),
    [pytest.param(harm, outcome, id=f"{what} {how}") for what, how, harm, outcome in STARTS],
)
def test_what_a_driver_finds_before_it_reads(harm: Harm, outcome: Outcome, tmp_path: Path) -> None:
    kept = Kept(tmp_path / "checkpoint").made()
    kept.start()
    harm(kept)
    outcome(kept)


def test_a_running_driver_whose_owner_record_is_gone_stops(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with Owner(storage) as owner:
        owner.check()
        storage.delete(f"owner/{owner.incarnation}.json")
        with pytest.raises(CheckpointInUse):
            owner.check()


def test_records_of_other_sources_that_are_gone_are_not_taken_for_none(tmp_path: Path) -> None:
    """Kafka and change feeds: nothing else tells what comes next."""
    storage = LocalStorage(tmp_path)
    storage.write_text("spark/commits/3", "v1\n{}")
    storage.write_text("changes/commits/3.json", "{}")
    assert Markers(storage, "changes/offsets", "changes/commits").next() == 4
    with pytest.raises(LakemirrorError, match="spark/offsets has none"):
        OffsetLog(storage).repair()


def test_a_history_from_another_copy_is_completed() -> None:
    """Older: by the rows of the audit that it lacks. Newer than the audit: it stays."""
    at_noon = {"committed_at": "2026-03-01T12:00:00+00:00", "query_id": "q", "records": 1}
    older = AuditHistory().after([{**at_noon, "batch_id": 0}], 0)
    newer = older.after([{**at_noon, "batch_id": 1}], 1)
    assert [older.has("q", number, newer.committed["q"]) for number in (0, 1)] == [True, False]
    assert from_text(to_text(newer)) == newer


# -- what a run does --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """A run over a checkpoint and mirrors that lack much, and the next one, after the remedy."""

    mirroring: Mirroring
    run: RunSummary
    healed: RunSummary
    rows: dict[str, list[tuple[int, int]]]
    again: list[tuple[int, int]]


def _records(shop: Shop) -> tuple[list[Record], list[Record], list[Record]]:
    both = (LATE, LOST)
    first = [each for of in both for id in (1, 2) for each in shop.create(of, id=id, v=1)]
    held_back = [each for of in both for each in shop.update(of, id=2, v=2)]
    second = [each for of in both for each in shop.delete(of, id=2, v=2)]
    second += shop.create(NEW, id=1, v=1)
    bad = [{**each, "value": "{", "offset": 900 + number} for number, each in enumerate(first[:3])]
    third = [*held_back, *shop.create(NEW, id=2, v=2), bad[2]]
    return [*first, bad[0]], [*second, bad[1]], third


def _lose_file(spark: SparkSession, folder: Path) -> None:
    """As a rule of a bucket does."""
    file = spark.read.format("delta").load(str(folder)).inputFiles()[0]
    local_path(file).unlink()


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("states")
    first, second, third = _records(Shop())
    settings = {"tables": [{"source": "public.lost"}], "spark": {"resetToken": ""}}
    mirroring = Mirroring(folder, settings).deliver([first])
    mirroring.run(spark)
    mirroring.deliver([second]).run(spark)
    checkpoint = mirroring.checkpoint
    for name in ("audit", "quarantine"):
        _lose_file(spark, checkpoint / name)
    for name in ("progress.json", "tokens.json", "layout.json"):
        (checkpoint / name).unlink()
    shutil.rmtree(checkpoint / "owner")
    (checkpoint / "files" / "commits" / "2.json").write_text('{"committedAt": "2026-03-01T12:00:00Z"}')
    shutil.rmtree(f"{mirroring.path('demo', 'public', 'lost')}/_tombstones")
    java_class(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()
    after = mirroring.deliver([third]).run(spark)
    rows = {of.name: _rows(spark, mirroring, of.name) for of in (LATE, LOST, NEW)}
    again = Mirroring(folder, {**settings, "tables": [{"source": "public.lost", "resyncToken": "1"}]})
    healed = again.run(spark)
    return Told(mirroring, after, healed, rows, _rows(spark, mirroring, "lost"))


def _rows(spark: SparkSession, mirroring: Mirroring, name: str) -> list[tuple[int, int]]:
    path = mirroring.path("demo", "public", name)
    return sorted((row["id"], row["v"]) for row in at(spark, path).collect())


@pytest.mark.long
def test_tombstones_that_are_gone_are_not_taken_for_none(told: Told) -> None:
    error = told.run.held["demo.public.lost"]
    assert "the tombstones of demo.public.lost are gone" in error
    assert "tables[public.lost].resyncToken" in error
    assert told.rows["lost"] == [(1, 1)]
    assert told.healed.held == {}
    assert told.again == [(1, 1)], "read again, it has its tombstones again"


@pytest.mark.long
def test_the_others_go_on(told: Told) -> None:
    assert set(told.run.held) == {"demo.public.lost"}
    assert told.rows["late"] == [(1, 1)], "a change that is late changes nothing"
    assert told.rows["new"] == [(1, 1), (2, 2)], "the batch does not get the number of the stray marker"


@pytest.mark.long
@pytest.mark.parametrize("what", ["audit", "quarantine"])
def test_files_of_our_own_tables_that_are_gone_are_reported(
    what: str, told: Told, spark: SparkSession
) -> None:
    folder = told.mirroring.checkpoint / what
    [warning] = [each for each in told.run.warnings if str(folder) in each]
    assert f"1 file(s) of {folder} are gone" in warning
    assert spark.read.format("delta").load(str(folder)).count() > 0, "it can be read again"
    assert not [each for each in told.healed.warnings if str(folder) in each]


@pytest.mark.long
def test_totals_are_carried_on(told: Told) -> None:
    history = from_text((told.mirroring.checkpoint / "history.json").read_text())
    late = history.tables["demo.public.late"].counts
    assert (late.inserted, late.deleted, late.stale) == (2, 1, 1)
    assert history.whole.quarantined == 6, "three, and again when the table was read again"


@pytest.mark.long
def test_the_checkpoint_of_another_pipeline_is_left_alone(told: Told, spark: SparkSession) -> None:
    other = Mirroring(told.mirroring.folder, {"deletionPolicy": "DeleteAll"}, name="other")
    with pytest.raises(AnotherPipeline, match="give this pipeline a checkpoint of its own"):
        other.run(spark)
    with pytest.raises(AnotherPipeline):
        delete_data(other.pipeline, spark)


@pytest.mark.long
def test_a_checkpoint_that_is_older_than_its_mirrors_catches_up(spark: SparkSession, tmp_path: Path) -> None:
    shop, items = Shop(), table("ärgernis.v2", V)
    mirroring = Mirroring(tmp_path).deliver(
        [[*shop.create(items, id=1, v=1), *shop.create(items, id=2, v=1)]]
    )
    mirroring.run(spark)
    shutil.copytree(mirroring.checkpoint, tmp_path / "copy")
    mirroring.deliver([[*shop.update(items, id=1, v=2), *shop.delete(items, id=2, v=1)]]).run(spark)
    shutil.rmtree(mirroring.checkpoint)
    shutil.copytree(tmp_path / "copy", mirroring.checkpoint)
    java_class(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()
    summary = mirroring.deliver([shop.create(items, id=3, v=3)]).run(spark)
    assert (summary.batches, summary.held) == (2, {})
    assert _rows(spark, mirroring, quote(items.name)) == [(1, 2), (3, 3)]


# -- the table --------------------------------------------------------------------------------------


def test_each_thing_of_the_table_is_a_case() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = re.search(r"\n## What stands on disk\n(.*?)\n## ", text, re.DOTALL)
    assert section is not None
    things = set(re.findall(r"^\| `([^`]+)`", section[1], re.MULTILINE))
    elsewhere = re.findall(r"`([^`]+)`: `[\w/]+/test_\w+`", section[1])
    tried = {what for what, *_ in STARTS}
    tried |= {"_tombstones", "audit/", "quarantine/", "progress.json", "history.json", "spark/", "changes/"}
    assert things - tried == set(elsewhere), "each row is a case here, or says where it is"
