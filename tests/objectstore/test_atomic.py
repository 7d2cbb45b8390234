"""No driver starts where two could commit the same version, or own the same checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.object_stores import CONDITIONAL_FILE_MANAGER, FILE_MANAGER_SETTING, setting_of
from lakemirror.driver.runtime.atomic import CommitsNotAtomic, atomic_checkpoint, require_atomic_commits
from lakemirror.driver.runtime.jars import JarsUnavailable
from tests.support.mirroring import Mirroring
from tests.support.object_store import Bucket
from tests.support.s3_proxy import Fault, puts
from tests.support.store_mirroring import StoreMirroring

pytestmark = [
    pytest.mark.sources,
    pytest.mark.guarantee(
        "The driver uses no setting, session or store with which two drivers could commit the same version"
    ),
]


@contextmanager
def setting(spark: SparkSession, name: str, value: str | None) -> Iterator[None]:
    """A setting that the session was made with; None: without it."""
    conf = spark.sparkContext._conf
    before = conf.get(name, None)
    try:
        conf.set(name, value) if value is not None else conf._jconf.remove(name)  # type: ignore[union-attr]
        yield
    finally:
        conf.set(name, before) if before is not None else conf._jconf.remove(name)  # type: ignore[union-attr]


def refusal(spark: SparkSession, mirroring: Mirroring) -> str:
    with pytest.raises(CommitsNotAtomic) as refused:
        require_atomic_commits(spark, mirroring.pipeline)
    return str(refused.value)


def test_a_store_that_honours_the_condition_is_taken(
    s3: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    require_atomic_commits(s3, StoreMirroring(tmp_path, bucket).pipeline)
    assert not [file for file in bucket.files.rglob("*") if file.is_file()]


def test_a_store_that_ignores_the_condition_is_refused(
    s3: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    mirroring = StoreMirroring(tmp_path, bucket)
    with bucket.proxy.fault(Fault("unconditional", puts, 99)), pytest.raises(CommitsNotAtomic) as refused:
        mirroring.run(s3)
    assert f"127.0.0.1:{bucket.proxy.port}" in str(refused.value)
    assert "If-None-Match" in str(refused.value)
    assert not [file for file in bucket.files.rglob("*") if file.is_file()]


@pytest.mark.parametrize("own", [None, "org.apache.spark.sql.execution.streaming.checkpointing.Own"])
def test_a_session_goes_on_to_a_checkpoint_elsewhere(
    own: str | None, s3: SparkSession, bucket: Bucket
) -> None:
    if own is not None:
        s3.conf.set(FILE_MANAGER_SETTING, own)
    try:
        with atomic_checkpoint(s3, f"{bucket.uri}/checkpoint"):
            assert s3.conf.get(FILE_MANAGER_SETTING) == CONDITIONAL_FILE_MANAGER
        with atomic_checkpoint(s3, "/tmp/checkpoint"):
            assert s3.conf.get(FILE_MANAGER_SETTING, None) == own
    finally:
        s3.conf.unset(FILE_MANAGER_SETTING)


def test_a_run_leaves_the_session_as_it_was(s3: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    mirroring = StoreMirroring(tmp_path, bucket)
    mirroring.input.mkdir()
    mirroring.run(s3)
    assert s3.conf.get(FILE_MANAGER_SETTING, None) is None


def test_each_bucket_is_asked(s3: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    mirroring = Mirroring(tmp_path, {"target": {"path": f"{bucket.uri}/{{table}}"}})
    with bucket.proxy.fault(Fault("unconditional", puts, 99)):
        assert bucket.uri in refusal(s3, mirroring)


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("spark.delta.logStore.class", "io.delta.storage.S3SingleDriverLogStore", "unset it"),
        (setting_of("s3a"), "io.delta.storage.S3SingleDriverLogStore", "S3SingleDriverLogStore"),
        (setting_of("s3a"), None, "the default of Delta"),
    ],
)
def test_a_session_with_an_unsafe_log_store_is_refused(
    name: str, value: str | None, word: str, s3: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    with setting(s3, name, value):
        assert word in refusal(s3, StoreMirroring(tmp_path, bucket))


def test_a_client_that_does_not_send_the_condition_is_refused(
    s3: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    s3.conf.set(f"fs.s3a.bucket.{bucket.name}.create.conditional.enabled", "false")
    assert "fs.s3a.create.conditional.enabled" in refusal(s3, StoreMirroring(tmp_path, bucket))


def test_another_log_store_for_local_tables_is_refused(s3: SparkSession, tmp_path: Path) -> None:
    with setting(s3, setting_of("file"), "io.delta.storage.LocalLogStore"):
        assert "LocalLogStore" in refusal(s3, Mirroring(tmp_path))


def test_a_file_system_that_nobody_knows_is_refused(s3: SparkSession, tmp_path: Path) -> None:
    said = refusal(s3, Mirroring(tmp_path, {"target": {"path": "oss://lake/{table}"}}))
    assert "oss://" in said
    assert "s3a" in said


@pytest.mark.parametrize(
    ("uri", "name"), [("abfss://lake@account.dfs.core.windows.net", "azure"), ("gs://lake", "gcs")]
)
def test_missing_jars_are_named_with_the_setting_that_brings_them(
    uri: str, name: str, s3: SparkSession, tmp_path: Path
) -> None:
    mirroring = Mirroring(tmp_path, {"target": {"path": f"{uri}/{{table}}"}})
    with pytest.raises(JarsUnavailable, match=f"LAKEMIRROR_OBJECT_STORES={name}"):
        require_atomic_commits(s3, mirroring.pipeline)
