"""The Java classes that list logs and make commits atomic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakemirror.api.object_stores import (
    CONDITIONAL_FILE_MANAGER,
    CONDITIONAL_LOG_STORE,
    LOCAL_LOG_STORE,
    RENAMING_LOG_STORE,
)
from lakemirror.driver.java import java_class
from lakemirror.driver.runtime import log_store

pytestmark = pytest.mark.guarantee(
    "A batch costs what it brings, however many came before: logs have a limit unless a property of the "
    "table sets one, listings begin at the last checkpoint, and our own tables are compacted unasked"
)


def test_they_compile_without_the_jars_of_any_store(spark: SparkSession) -> None:
    assert set(log_store._compiled(spark)) >= {
        f"{name.replace('.', '/')}.class"
        for name in (CONDITIONAL_LOG_STORE, CONDITIONAL_FILE_MANAGER, LOCAL_LOG_STORE)
    }
    assert log_store.knows(spark, LOCAL_LOG_STORE)


def listing(spark: SparkSession, kind: str, path: Path) -> list[tuple[str, int, int]]:
    """What a log store lists from a name on: name, size and time of each file."""
    settings: Any = spark._jsparkSession.sessionState().newHadoopConf()
    store = java_class(spark, kind)(settings)
    found = store.listFrom(java_class(spark, "org.apache.hadoop.fs.Path")(str(path)), settings)
    files = []
    while found.hasNext():
        each = found.next()
        files.append((each.getPath().toString(), each.getLen(), each.getModificationTime()))
    return files


def test_a_local_log_is_listed_as_by_delta_itself(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "a table" / "_delta_log"
    log.mkdir(parents=True)
    names = [f"{n:020d}.json" for n in (9, 10, 11, 100)] + ["_last_checkpoint", "odd:name", ".a.crc", "x%20y"]
    for name in [*names, f"{10:020d}.checkpoint.parquet", f".{9:020d}.json.crc"]:
        (log / name).write_text(name)
    (log / "_sidecars").mkdir()
    for start in ("0", f"{0:020d}.", f"{10:020d}.", f"{101:020d}."):
        expected = listing(spark, RENAMING_LOG_STORE, log / start)
        assert listing(spark, LOCAL_LOG_STORE, log / start) == expected
    assert len(listing(spark, LOCAL_LOG_STORE, log / f"{10:020d}.")) == 8
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        listing(spark, LOCAL_LOG_STORE, tmp_path / "none" / f"{0:020d}.")
