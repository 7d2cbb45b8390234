"""Refuses to start where two drivers could commit the same version of a table or own the same checkpoint.

`lakemirror.api.object_stores` checks the settings in the manifest before there is a session. This module
checks the actual settings of the session and the actual behavior of the store.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline, object_stores
from lakemirror.api.object_stores import CONDITION, ObjectStore, store_of
from lakemirror.driver.checkpoint.storage import HadoopStorage, file_system
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.runtime import log_store
from lakemirror.driver.runtime.jars import OBJECT_STORES, JarsUnavailable

_PROBE = "_lakemirror_probe"


class CommitsNotAtomic(LakemirrorError):
    """Two drivers could commit the same version of a table to a file system, or own the same checkpoint."""


def require_atomic_commits(spark: SparkSession, pipeline: CdcPipeline) -> None:
    """Check that commits are atomic everywhere the pipeline writes.

    Raises CommitsNotAtomic, which names the location and says what to do, and JarsUnavailable for a store
    without its jars. In each bucket of an object store, a small file is written below a location and deleted
    again, to check that the store refuses to create a file that exists.
    """
    probed = set()
    for place in _places(spark, pipeline):
        _require_known(spark, place)
        store = store_of(place)
        if store is None or not urlsplit(place).netloc or _root(place) in probed:
            continue
        if store.creates_by == "condition":
            _require_condition(spark, place)
        _require_refusal(spark, place, store)
        probed.add(_root(place))


@contextmanager
def atomic_checkpoint(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """Make Spark's streaming keep its ``checkpoint`` in such a way that the store refuses a second writer.

    The session's own setting is restored on exit, because the session may run a pipeline with another
    checkpoint next.
    """
    if not object_stores.renames_badly(_with_scheme(spark, checkpoint)):
        yield
        return
    before = spark.conf.get(object_stores.FILE_MANAGER_SETTING, None)
    spark.conf.set(object_stores.FILE_MANAGER_SETTING, object_stores.CONDITIONAL_FILE_MANAGER)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(object_stores.FILE_MANAGER_SETTING)
        else:
            spark.conf.set(object_stores.FILE_MANAGER_SETTING, before)


def _places(spark: SparkSession, pipeline: CdcPipeline) -> Iterator[str]:
    """Yield the folders that the pipeline writes to, with schemes, as far as they are known in advance."""
    spec = pipeline.spec
    yield _with_scheme(spark, spec.checkpoint)
    targets = [spec.target, *(table.target for table in spec.tables if table.target is not None)]
    for target in targets:
        if target.path is not None:
            yield _with_scheme(spark, _before_placeholders(target.path))
    if spec.target.jdbc is None and any(target.table is not None for target in targets):
        yield _with_scheme(spark, str(spark.conf.get("spark.sql.warehouse.dir")))


def _before_placeholders(path: str) -> str:
    """Return the folder above all mirrors, without a bucket if the bucket contains a placeholder."""
    scheme, separator, rest = path.rpartition("://")
    return f"{scheme}{separator}{rest.partition('{')[0].rpartition('/')[0] or ('' if separator else '/')}"


def _with_scheme(spark: SparkSession, uri: str) -> str:
    """Return the URI with a scheme. A path without a scheme belongs to the default file system."""
    if urlsplit(uri).scheme:
        return uri
    default: Any = spark._jsparkSession.sessionState().newHadoopConf().get("fs.defaultFS", "file:///")
    return f"{str(default).rstrip('/')}/{uri.lstrip('/')}"


def _root(uri: str) -> str:
    """Return the scheme and the bucket."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}"


def _require_known(spark: SparkSession, place: str) -> None:
    """Check that the scheme is known, its jars are present, and Delta uses the right log store."""
    store = store_of(place)
    settings = spark.sparkContext._conf
    if settings.contains(object_stores.ONE_LOG_STORE_SETTING):
        raise CommitsNotAtomic(
            f"{object_stores.ONE_LOG_STORE_SETTING} of the session is one log store for all file systems: "
            "unset it"
        )
    if store is None:
        unknown = object_stores.unknown_scheme(place)
        if unknown is not None:
            raise CommitsNotAtomic(f"{place}: {unknown}")
        _require_log_store(spark, place, default=True)
        log_store.install(spark)  # a session that the caller made may name the class, and lack it
        return
    if not log_store.knows(spark, store.file_system):
        raise JarsUnavailable(
            f"{place}: the jars of {store.title} are not there. Set {OBJECT_STORES}={store.name} in the "
            f"environment of `lakemirror run`, or build the image with --build-arg OBJECT_STORES={store.name}"
        )
    _require_log_store(spark, place, default=store.creates_by != "condition")
    if store.creates_by != "rename":
        log_store.install(spark)  # a session that the caller made may lack the class


def _require_log_store(spark: SparkSession, place: str, *, default: bool) -> None:
    """Check that Delta commits with a safe log store, which may be its ``default``."""
    scheme = urlsplit(place).scheme.lower()
    setting, safe = object_stores.setting_of(scheme), object_stores.safe_log_stores(scheme)
    used = spark.sparkContext._conf.get(setting, None)
    if used in safe or (used is None and default):
        return
    raise CommitsNotAtomic(
        f"{place}: the session commits with {used or 'the default of Delta'}, which is not known to "
        f"be safe with several writers. Make the session with {setting}={safe[0]}, as "
        "lakemirror.driver.runtime.session.create_session does"
    )


def _require_condition(spark: SparkSession, place: str) -> None:
    """Check that the client sends the condition."""
    files, path = file_system(spark, place)
    if not files.hasPathCapability(path, CONDITION):
        raise CommitsNotAtomic(
            f"{place}: {files.getClass().getName()} does not put conditionally here, so that two drivers "
            "could commit one version. Use hadoop-aws 3.4.2 or newer and leave "
            "fs.s3a.create.conditional.enabled on"
        )


def _require_refusal(spark: SparkSession, place: str, store: ObjectStore) -> None:
    """Check that the store refuses to create a file that exists."""
    storage, name = HadoopStorage(place, spark), f"{_PROBE}/{uuid.uuid4().hex}"
    try:
        storage.create(name, "first\n")
        refused = not storage.create(name, "second\n")
    except Py4JJavaError as error:
        if "501" not in str(error.java_exception):
            raise
        refused = False  # the store itself says that it does not support the condition
    finally:
        storage.delete(name)
    if not refused:
        what, use = _WHY[store.creates_by]
        who = storage.setting("fs.s3a.endpoint") or store.title
        raise CommitsNotAtomic(
            f"{place}: the store ({who}) does not refuse {what}, so that two drivers could commit one "
            f"version. Use {use}"
        )


_WHY: Final = {
    "condition": (
        "a conditional put (If-None-Match: *) of a file that is there",
        "a store that does, such as Amazon S3, and nothing in between that drops the header",
    ),
    "create": ("to create a file that is there", "Google Cloud Storage itself, with its own connector"),
    "rename": ("a rename to a file that is there", "an account with a hierarchical namespace"),
}
"""What was not refused, and what to do."""
