"""Which file system a mirror is on, by its path and the session."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.engine.file_systems import FileSystems
from lakemirror.driver.engine.mirror_files import NotForEngine
from lakemirror.driver.writer.stores import LocalDisk


def test_a_path_without_a_scheme_is_on_the_default_file_system(spark: SparkSession) -> None:
    """A copy of the mirror may be on the local disk at this path, and must not be taken for it."""
    session = spark.newSession()
    session.conf.set("fs.defaultFS", "viewfs://cluster/")
    systems = FileSystems(session)
    assert systems.folder("/lake/t") == "viewfs://cluster/lake/t"
    with pytest.raises(NotForEngine, match="neither on a local disk nor on S3"):
        systems.of(systems.folder("/lake/t"))
    assert systems.folder("file:///lake/t") == "/lake/t"
    assert systems.folder("s3a://lake/t") == "s3a://lake/t"


def test_a_path_without_a_scheme_is_on_the_local_disk_by_default(spark: SparkSession) -> None:
    systems = FileSystems(spark)
    for path in ("/lake/a b%20", "file:/lake/a b%20", "file:///lake/a b%20"):
        assert systems.folder(path) == "/lake/a b%20"
        assert systems.of(systems.folder(path)) == LocalDisk()
    assert systems.folder("") == ""
