"""When tables are loaded from their database, and what happens while there is none."""

from __future__ import annotations

import json
import re
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.errors import CheckpointInUse, LakemirrorError, PipelineStopped
from lakemirror.driver.record.history import AuditHistory
from lakemirror.driver.runtime import loading
from lakemirror.driver.runtime.events import BatchDone, Event, Warned
from lakemirror.driver.runtime.loading import Loading
from lakemirror.driver.runtime.reload import Reloaded, ReloadRequest
from lakemirror.driver.runtime.replay_requests import ReplayOutcome
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.tables.jdbc_database import DatabaseUnreachable
from tests.api.manifests import SMALL, changed
from tests.support.mirroring import Mirroring
from tests.support.ports import free_port
from tests.support.records import Column
from tests.support.shop import Shop, table


class Feed:
    """A source of which nothing is read at first, and something at the given look."""

    def __init__(self, committed_at: int | None = None, pending_at: int | None = None) -> None:
        self.looks, self.committed_at, self.pending_at = 0, committed_at, pending_at

    def committed(self) -> object | None:
        self.looks += 1
        return object() if self.looks == self.committed_at else None

    def pending(self) -> list[object]:
        return [object()] if self.looks == self.pending_at else []


def load(feed: Feed, start: Any, *, ended: bool = False, over: threading.Event | None = None) -> None:
    """Load no table, once the stream has begun at ``start``."""
    kafka = {"bootstrapServers": "kafka:9092", "topics": ["t"], "startingOffsets": start}
    document = {**SMALL, "spec": {**SMALL["spec"], "source": {"kafka": kafka}}}
    run: Any = SimpleNamespace(
        pipeline=CdcPipeline.from_dict(document), threads=SimpleNamespace(stopping=lambda: False)
    )
    source: Any = feed
    Loading(run, {}, source, lambda: ended).load(over or threading.Event())


@pytest.mark.parametrize("start", ["latest", {"timestamp": "2026-03-01T00:00:00Z"}])
@pytest.mark.parametrize("begun", [{"committed_at": 3}, {"pending_at": 3}])
def test_a_stream_that_starts_late_has_begun_before_its_tables_are_loaded(
    start: Any, begun: dict[str, int]
) -> None:
    """Else what changes between the snapshot and the beginning would be in neither."""
    feed = Feed(**begun)
    load(feed, start)
    assert feed.looks == 3


def test_a_stream_that_starts_at_its_beginning_is_not_waited_for() -> None:
    feed = Feed()
    load(feed, "earliest")
    assert feed.looks == 0


def test_a_stream_that_ends_without_a_beginning_is_told() -> None:
    """A first batch that came while it ended counts."""
    with pytest.raises(LakemirrorError, match="startingOffsets: earliest"):
        load(Feed(), "latest", ended=True)
    load(Feed(committed_at=1), "latest", ended=True)


class Loads:
    """Loads two tables, a and b, from a database of which nothing is asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, once: bool = False) -> None:
        self.storage, self.warnings, self.staged = LocalStorage(folder), list[str](), list[str]()
        self.fails: dict[str, Exception] = {}
        progress = SimpleNamespace(resyncing=lambda left: None)
        told = SimpleNamespace(
            tell=lambda event: None, warn=self.warnings.append, news=lambda: None, progress=progress
        )
        self.run: Any = SimpleNamespace(
            pipeline=CdcPipeline.from_dict(changed(verify={"jdbc": {"url": "jdbc:mariadb://db/"}})),
            threads=SimpleNamespace(stopping=lambda: False),
            announcer=told,
            storage=self.storage,
            once=once,
            secrets={},
            session=None,
            target=SimpleNamespace(open=None),
        )
        monkeypatch.setattr(loading, "LOOK_SECONDS", 0.05)
        monkeypatch.setattr(loading, "session_for", lambda session: None)
        monkeypatch.setattr(loading, "source_of", lambda *_: None)
        monkeypatch.setattr(loading, "open_source", lambda *_: nullcontext())
        monkeypatch.setattr(loading.audit, "history", lambda *_: AuditHistory())
        monkeypatch.setattr(loading, "wanted", lambda known, names, sources: names)
        monkeypatch.setattr(loading, "stage_table", self._stage)
        monkeypatch.setattr(
            loading, "stops_pipeline", lambda error, spark: isinstance(error, PipelineStopped)
        )
        feed: Any = Feed()
        self.loading = Loading(self.run, {"a": "1", "b": "1"}, feed, lambda: False)

    def _stage(
        self, session: Any, pipeline: Any, sources: Any, storage: Any, name: str, epochs: Any, **_: Any
    ) -> Any:
        self.staged.append(name)
        if name in self.fails:
            raise self.fails[name]
        return Reloaded(name), ReloadRequest(f"id-{name}", name, 1)

    def outcome(self, table: str, error: str | None = None) -> None:
        """What the thread that serves requests has written."""
        told = ReplayOutcome(f"id-{table}", 1, error=error)
        self.storage.write_text(f"reload/outcomes/id-{table}.json", told.text())

    def load(self, seconds: float = 0.6) -> None:
        over = threading.Event()
        threading.Timer(seconds, over.set).start()
        self.loading.load(over)

    @property
    def loaded(self) -> set[str]:
        path = "tokens.json"
        return set(json.loads(self.storage.read_text(path))["resync"]) if self.storage.exists(path) else set()


def test_a_table_whose_changes_cannot_be_applied_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not read again meanwhile: who serves the request tries again by itself."""
    loads = Loads(tmp_path, monkeypatch)
    loads.outcome("a", "the database of spec.target.jdbc cannot be reached")
    loads.outcome("b")
    loads.load()
    assert (loads.staged, loads.loaded, loads.warnings) == (["a", "b"], {"b"}, [])
    loads.outcome("a")
    loads.load()
    assert (loads.staged, loads.loaded) == (["a", "b"], {"a", "b"})


@pytest.mark.parametrize("error", [DatabaseUnreachable("away"), OSError("503"), LakemirrorError("no right")])
def test_what_fails_while_a_table_is_read_is_told_and_stops_nothing(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = Loads(tmp_path, monkeypatch)
    loads.fails["a"] = error
    loads.outcome("b")
    loads.load()
    assert (loads.staged, loads.loaded) == (["a", "b"], {"b"})
    [warning] = loads.warnings
    assert re.match(r"a could not be loaded from its database, and is loaded again in 5 s: ", warning)


def test_what_stops_a_pipeline_stops_it_here_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads(tmp_path, monkeypatch)
    loads.fails["a"] = CheckpointInUse("taken")
    with pytest.raises(CheckpointInUse):
        loads.load()


def test_a_run_once_fails_with_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = Loads(tmp_path, monkeypatch, once=True)
    loads.outcome("a", "no right")
    with pytest.raises(LakemirrorError, match="a could not be loaded from its database: no right"):
        loads.load()


def test_who_waits_for_the_beginning_can_be_stopped() -> None:
    over = threading.Event()
    threading.Timer(0.3, over.set).start()
    feed = Feed()
    load(feed, "latest", over=over)
    assert feed.looks > 0


def test_a_database_that_is_away_holds_up_no_stream(spark: SparkSession, tmp_path: Path) -> None:
    """A run that goes on warns and tries again; a run once fails, and the next one tries again."""
    items, shop = table("items", Column("v", "int32")), Shop()
    away = {"jdbc": {"url": f"jdbc:postgresql://127.0.0.1:{free_port()}/demo"}}
    settings = {
        "verify": away,
        "tables": [{"source": "public.items", "snapshot": "jdbc"}],
        "trigger": {"interval": "1s"},
    }
    mirroring = Mirroring(tmp_path, settings).deliver([shop.create(items, id=1, v=1)])
    warned: list[str] = []
    batches: list[BatchDone] = []

    def on_event(event: Event) -> None:
        if isinstance(event, Warned):
            warned.append(event.message)
        if isinstance(event, BatchDone):
            batches.append(event)

    until = time.monotonic() + 60
    run(
        mirroring.pipeline,
        spark=spark,
        on_event=on_event,
        stopping=lambda: bool(warned and batches) or time.monotonic() > until,
    )
    assert len(batches) == 1
    away_text = "public.items could not be loaded from its database, and is loaded again in 5 s: .*reached"
    assert re.match(away_text, warned[0])
    with pytest.raises(LakemirrorError, match=r"public\.items could not be loaded from its database"):
        mirroring.run(spark)
