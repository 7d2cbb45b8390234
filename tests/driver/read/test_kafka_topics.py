"""What the topics of a pipeline have become since they were read, without a broker."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakemirror.api.source import KafkaSource
from lakemirror.driver.checkpoint import identity
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.read.base import Standing
from lakemirror.driver.read.kafka import KafkaFeed, SourceLost
from lakemirror.driver.read.offset_log import OffsetLog

POSITION = {"keep": {0: 5}, "big": {0: 100}}
ENDS = {"keep": {0: 5}, "big": {0: 900}}


def feed(folder: Path, topics: Iterable[str], there: Iterable[str] = ENDS) -> tuple[Any, list[str]]:
    """Return a feed that has read `POSITION`, of which these topics are ``there``, and its warnings."""
    storage, warnings = LocalStorage(folder), list[str]()
    known = {
        topic: {"id": f"id of {topic}", "ends": {"0": ends[0]}, "followed": False}
        for topic, ends in ENDS.items()
    }
    storage.write_text("kafka/topics.json", json.dumps({"topics": known}))
    made: Any = KafkaFeed.__new__(KafkaFeed)
    made._source = KafkaSource.model_validate({"bootstrapServers": "kafka:9092", "topics": list(topics)})
    made._storage, made._asking, made._position = storage, nullcontext, POSITION
    made.query_id = "query"
    made._log = SimpleNamespace(position=lambda: POSITION)
    made._told, made._warn, made._compaction_lags = set(), warnings.append, {}
    ids = {topic: SimpleNamespace(topicId=partial_id(topic)) for topic in there}
    made._admin = SimpleNamespace(
        described=lambda wanted, before: {name: each for name, each in ids.items() if wanted(name)},
        end_offsets=lambda topics: {topic: ENDS[topic] for topic in topics},
        begin_offsets=lambda topics: {topic: {0: 0} for topic in topics},
        compaction_lags=lambda topics: {},
    )
    return made, warnings


def partial_id(topic: str) -> Any:
    return lambda: f"id of {topic}"


def test_a_topic_that_the_manifest_leaves_out_is_not_taken_for_deleted(tmp_path: Path) -> None:
    """Spark would take it for a loss, until a batch is done without it."""
    made, warnings = feed(tmp_path, ["keep"])
    assert made._check_topics()
    assert made._check_topics()
    assert warnings == ["topic big is no longer read: spec.source.kafka does not name it any more"]
    known = json.loads((tmp_path / "kafka/topics.json").read_text())["topics"]
    assert known["big"]["ends"] == {"0": 900}, "it may be named again before that batch"
    again, warnings = feed(tmp_path, ["keep", "big"])
    assert not again._check_topics()
    assert warnings == []


def test_a_topic_that_is_deleted_unread_is_told(tmp_path: Path) -> None:
    made, _ = feed(tmp_path, ["keep", "big"], there=["keep"])
    with pytest.raises(SourceLost, match="topic big was deleted before all of it was read"):
        made._check_topics()


def test_offsets_and_identity_of_different_copies_are_named(tmp_path: Path) -> None:
    made, _ = feed(tmp_path, ["keep", "big"])
    made._log = SimpleNamespace(recorded=lambda: {0}, position=lambda: POSITION)
    query = identity.query_id(made._storage, "kafka", started=False)
    made._require_own_topics()  # an earlier version did not note the query
    for noted in (query, "other"):
        made._storage.write_text("kafka/topics.json", json.dumps({"query": noted, "topics": {}}))
        with nullcontext() if noted == query else pytest.raises(LakemirrorError, match=r"metadata.json of"):
            made._require_own_topics()


def test_what_all_tables_have_is_done_though_its_records_are_gone(tmp_path: Path) -> None:
    """The driver died before Spark marked the batch, and the brokers have deleted what it read."""
    made, _ = feed(tmp_path, ["keep", "big"])
    storage, made.query_id = made._storage, "query"
    made._log = OffsetLog(storage)
    for number, end in enumerate((5, 7)):
        storage.write_text(f"spark/offsets/{number}", f'v1\n{{}}\n{{"keep":{{"0":{end}}}}}\n')
    made._log.commit(0)
    for applied, settles in ((0, False), (1, True), (1, False)):
        made._standing = Standing(applied=lambda query, last=applied: last)
        assert made._settle() == settles
    assert made._log.committed() == {0, 1}
    assert made._log.position() == made._position == {"keep": {0: 7}}
