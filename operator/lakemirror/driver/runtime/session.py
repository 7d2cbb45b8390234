"""Creates a SparkSession: Java, jars and configuration."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from lakemirror.api import spark_settings
from lakemirror.api.jvm import java_options
from lakemirror.api.object_stores import session_settings
from lakemirror.api.secret_settings import REDACTION, redaction
from lakemirror.driver import java
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.runtime import jars, log_store

JAVA_NEEDED = 17
_log = logging.getLogger(__name__)
_AVRO: Final[Mapping[str, str]] = {
    "org.apache.avro.limits.bytes.maxLength": "20000000",
    "org.apache.avro.limits.string.maxLength": "20000000",
    "org.apache.avro.limits.collectionItems.maxLength": "5000000",
}
"""What Avro allocates at most for a value of a record, as system properties.

It allocates as much as the record claims to hold, before it finds that there is less: gigabytes for ten
bytes. JSON has the same limit for texts (`parse.envelopes.base.CHARACTERS`).
"""
_LOGGING = Path(__file__).with_name("log4j2.properties")
_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Where a container finds the limit of its memory, in bytes, by the version of its control groups."""
_BESIDE_HEAP_MIB: Final = 1024
"""What a driver needs beside its heap, at least (`controller.sparkconf`)."""


class JavaMissing(LakemirrorError):
    """There is no Java, or it is too old for Spark."""


class HiveMissing(LakemirrorError):
    """The catalog is a Hive metastore, and the image was built without its client."""


def create_session(
    app_name: str, conf: Mapping[str, str] | None = None, properties: Mapping[str, str] | None = None
) -> SparkSession:
    """Create a session that reads Kafka and writes Delta.

    ``conf`` contains Spark settings, which override our defaults. ``properties`` are the system properties
    that its JVMs need. If nothing names a master, Spark runs here in local mode. Settings of Spark SQL and
    Delta from elsewhere, such as the image, that may change results are dropped. Raises JavaMissing,
    HiveMissing and JarsUnavailable.
    """
    while _starting:
        _starting.pop().join()
    settings = _settings(conf or {}, properties or {})
    builder = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    if SparkContext._active_spark_context is None:
        _drop_foreign(SparkContext.getOrCreate(_configuration(app_name, settings)), settings)
    session = builder.getOrCreate()
    java.find_once(session)
    for name, value in _AVRO.items():  # Avro reads them when it first decodes something
        java.java_class(session, "java.lang.System").setProperty(name, value)
    log_store.install(session)
    _forget_origins(session)
    return session


_starting: Final[list[threading.Thread]] = []


def start_jvm(app_name: str, conf: Mapping[str, str], properties: Mapping[str, str]) -> None:
    """Begin to start the JVM of the session that `create_session` is to create with the same arguments.

    That takes as long as to import the driver. An error is left to `create_session`, which meets it, too.
    """

    def start() -> None:
        try:
            given = _configuration(app_name, _settings(conf, properties))
            SparkContext._ensure_initialized(conf=given)
        except Exception as error:
            _log.debug("the JVM could not be started in advance: %s", error)

    _starting.append(threading.Thread(target=start, name="lakemirror-jvm", daemon=True))
    _starting[-1].start()


def _settings(conf: Mapping[str, str], properties: Mapping[str, str]) -> dict[str, str]:
    """Return all settings of a session. Raises JavaMissing, HiveMissing and JarsUnavailable."""
    if SparkContext._gateway is None:  # otherwise Java runs already
        check_java()
    settings = {**_defaults(conf), **conf}
    _require_hive(settings)
    settings[REDACTION] = redaction(conf.get(REDACTION, ""))
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        settings |= _java_options(conf, properties)
        # Spark's Python workers are of this environment, although its interpreter may not be on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return {name: str(value) for name, value in settings.items()}


def _configuration(app_name: str, settings: Mapping[str, str]) -> SparkConf:
    return SparkConf().setAppName(app_name).setAll(list(settings.items()))


def _require_hive(settings: Mapping[str, str]) -> None:
    """Raise HiveMissing if the settings name a catalog that Spark lacks. Its own error would not say why."""
    if settings.get("spark.sql.catalogImplementation") == "hive" and not jars.has_hive():
        raise HiveMissing(
            "spark.sql.catalogImplementation: hive needs the client of a Hive metastore, which this image "
            "lacks: build one with METASTORES=hive scripts/images (docs/catalogs.md)"
        )


def _drop_foreign(context: SparkContext, ours: Mapping[str, str]) -> None:
    """Drop settings that may change results and are not ``ours``: they come from files of Spark's own.

    To be called before the context has a session, which copies its settings.
    """
    settings: Any = context._jsc.sc().conf()
    for name, value in context.getConf().getAll():
        if name not in ours and spark_settings.changes_results(name):
            settings.remove(name)
            _log.warning(
                "%s=%s, from a file of Spark's own, may change what mirrors contain, and is left out",
                name,
                value,
            )


def _forget_origins(session: SparkSession) -> None:
    """Drop the origins of Hadoop's settings, which only messages use.

    Hadoop's Configuration notes which file each of its 1,100 settings comes from. These notes are copied with
    every query, and compressed one by one whenever the Configuration is sent to tasks.
    """
    settings = session.sparkContext._jsc.hadoopConfiguration()
    try:
        kind = settings.getClass().getClassLoader().loadClass("org.apache.hadoop.conf.Configuration")
        origins = kind.getDeclaredField("updatingResource")
        origins.setAccessible(True)
        origins.set(settings, None)
    except Py4JError as error:  # another Hadoop may keep them elsewhere, and is no worse off than before
        _log.debug("Hadoop's settings keep their origins: %s", error)


def check_java() -> int:
    """Return the major version of the Java that Spark will start. Raises JavaMissing if it is unsuitable."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    remedy = f"Spark needs Java {JAVA_NEEDED} or newer: apt-get install openjdk-{JAVA_NEEDED}-jre-headless"
    if java is None:
        where = f"JAVA_HOME={home} holds no bin/java" if home else "java is not on the PATH"
        raise JavaMissing(f"{where}. {remedy}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    if match is None:
        raise JavaMissing(f"{java} does not tell its version ({said.strip()[:100]!r}). {remedy}")
    version = int(match[1])
    if version < JAVA_NEEDED:
        raise JavaMissing(f"{java} is Java {version}. {remedy}")
    return version


def _defaults(conf: Mapping[str, str]) -> dict[str, str]:
    defaults = {
        **spark_settings.OURS,
        "spark.executor.defaultJavaOptions": " ".join(f"-D{name}={value}" for name, value in _AVRO.items()),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        **session_settings(),
        "spark.sql.adaptive.enabled": "true",
        # Spark renders the plan of every query as text; ours are large and nobody reads them.
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.maxPlanStringLength": "4096",
        # These would record where each column was built, in every call to the JVM and in the JVM.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.dataFrameQueryContext.enabled": "false",
        # What follows from the conditions of several steps on whole rows (a filter, expectations,
        # expressions) is an exponential number of constraints, and none of them saves a read.
        "spark.sql.constraintPropagation.enabled": "false",
        # A batch of a few tables has hundreds of generated classes, the same in each batch. With the
        # default of 100, all of them would be compiled again every time.
        "spark.sql.codegen.cache.maxEntries": "10000",
        # Every sort, aggregation and broadcast starts with a page, by default of 64 MiB. A few of them at a
        # time fill a heap, and the rows of a batch are small.
        "spark.buffer.pageSize": "2m",
        # The log of one mirror is small, and its state is computed again with every commit.
        "spark.databricks.delta.snapshotPartitions": "2",
        # No two rows have the same sequence or offset: a dictionary would be started only to be discarded.
        "spark.hadoop.parquet.enable.dictionary#__seq": "false",
        "spark.hadoop.parquet.enable.dictionary#__origin.offset": "false",
    }
    if spark_settings.in_columns(conf):
        defaults["spark.python.daemon.module"] = "lakemirror.driver.engine.daemon"
    # spark-submit (Kubernetes) brings its own master, memory, log settings and jars.
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return defaults
    return defaults | jars.spark_conf() | (_local_defaults(conf) if _is_local(conf) else {})


def _java_options(conf: Mapping[str, str], properties: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the JVMs that we start: ours, then those of ``conf``."""
    driver, executor = (f"spark.{role}.extraJavaOptions" for role in ("driver", "executor"))
    logging = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    return {
        driver: java_options(f"{logging} {conf.get(driver, '')}", properties),
        executor: java_options(conf.get(executor, ""), properties),
    }


def _local_defaults(conf: Mapping[str, str]) -> dict[str, str]:
    return {
        "spark.master": "local[*]",
        "spark.driver.memory": f"{_driver_memory_mb()}m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        # With a few cores of one machine, replanning each stage costs more than it saves.
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": str(_cores(conf.get("spark.master", "local[*]"))),
    }


def _is_local(conf: Mapping[str, str]) -> bool:
    return conf.get("spark.master", "local").startswith("local")


def _cores(master: str) -> int:
    """Return the threads of a local master: ``local``, ``local[4]``, ``local[*]``, ``local[4, 2]``."""
    match = re.match(r"local\[\s*(\d+)", master)
    if match:
        return int(match[1])
    return len(os.sched_getaffinity(0)) if "[" in master else 1


def _driver_memory_mb() -> int:
    """Return a quarter of the machine's memory in MiB, but at least 1 and at most 4 GiB.

    A container with a limit keeps 1 GiB of it for what is beside the heap, unless the heap gets too small.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    most = min(4096, machine // 4, *(each - _BESIDE_HEAP_MIB for each in _limits_mib()))
    return max(1024, most)


def _limits_mib() -> Iterator[int]:
    """Yield the limit of this container's memory in MiB, if there is one."""
    for path in _LIMITS:
        try:
            yield int(path.read_text()) // 2**20
        except (OSError, ValueError):  # there is no such file, or it says max
            continue
