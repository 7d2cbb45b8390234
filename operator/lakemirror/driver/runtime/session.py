"""One SparkSession: Java, jars, configuration."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lakemirror.api.jvm import java_options
from lakemirror.api.object_stores import session_settings
from lakemirror.driver import java
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.runtime import jars, log_store

JAVA_NEEDED = 17
_log = logging.getLogger(__name__)
_LOGGING = Path(__file__).with_name("log4j2.properties")


class JavaMissing(LakemirrorError):
    """No Java, or one that is too old for Spark."""


def create_session(
    app_name: str, conf: Mapping[str, str] | None = None, properties: Mapping[str, str] | None = None
) -> SparkSession:
    """A session that reads Kafka and writes Delta; ``conf`` (Spark's settings) wins over our defaults.
    ``properties`` are those of the system that its JVMs need.

    Where nothing names a master it runs here, in local mode. Raises JavaMissing and JarsUnavailable.
    """
    check_java()
    settings = {**_defaults(conf or {}), **(conf or {})}
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        settings |= _java_options(conf or {}, properties or {})
    builder = SparkSession.builder.appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    session = builder.getOrCreate()
    java.find_once(session)
    log_store.install(session)
    _forget_origins(session)
    return session


def _forget_origins(session: SparkSession) -> None:
    """Hadoop's Configuration notes which file each of its 1,100 settings is from. They are copied with every
    query and compressed one by one whenever it is sent to tasks, and only messages name them.
    """
    settings = session.sparkContext._jsc.hadoopConfiguration()
    try:
        kind = settings.getClass().getClassLoader().loadClass("org.apache.hadoop.conf.Configuration")
        origins = kind.getDeclaredField("updatingResource")
        origins.setAccessible(True)
        origins.set(settings, None)
    except Py4JError as error:  # another Hadoop may keep them elsewhere, and does no worse than before
        _log.debug("Hadoop's settings keep their origins: %s", error)


def check_java() -> int:
    """The major version of the Java that Spark is going to start; JavaMissing when it won't do."""
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
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        **session_settings(),
        # A column may be called ${env:HOME}.
        "spark.sql.variable.substitute": "false",
        "spark.sql.adaptive.enabled": "true",
        # Plans are drawn as text for every query; ours are large and nobody looks at them.
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.maxPlanStringLength": "4096",
        # Options that plans and logs do not show: as Spark has it, and what a Kafka client logs in with.
        "spark.redaction.regex": r"(?i)secret|password|token|access[.]?key|keystore[.]key|jaas",
        # Note where each column was built, in every call to the JVM, and in the JVM.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.dataFrameQueryContext.enabled": "false",
        # A batch of a few tables has hundreds of generated classes, the same in each batch: the default of
        # 100 would compile them all anew every time.
        "spark.sql.codegen.cache.maxEntries": "10000",
        # Every sort, aggregation and broadcast begins with a page, by default one of 64 MiB: of a few of them
        # at a time a heap is full, and rows of a batch are small.
        "spark.buffer.pageSize": "2m",
        # The log of one mirror is small, and its state is computed anew with every commit.
        "spark.databricks.delta.snapshotPartitions": "2",
        # Spark's own default is the INT96 of old, which costs a seventh of the time of rewriting a file.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # No two rows have the same sequence or offset: a dictionary of them is written only to be given up.
        "spark.hadoop.parquet.enable.dictionary#__seq": "false",
        "spark.hadoop.parquet.enable.dictionary#__origin.offset": "false",
    }
    # spark-submit (Kubernetes) brings master, memory, log settings and jars of its own.
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return defaults
    return defaults | jars.spark_conf() | (_local_defaults(conf) if _is_local(conf) else {})


def _java_options(conf: Mapping[str, str], properties: Mapping[str, str]) -> dict[str, str]:
    """Options of the JVMs that we start: ours, then those of ``conf``."""
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
        # A few cores share one machine: planning each stage anew costs more than it brings.
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": str(_cores(conf.get("spark.master", "local[*]"))),
    }


def _is_local(conf: Mapping[str, str]) -> bool:
    return conf.get("spark.master", "local").startswith("local")


def _cores(master: str) -> int:
    """Threads of a local master: ``local``, ``local[4]``, ``local[*]``, ``local[4, 2]``."""
    match = re.match(r"local\[\s*(\d+)", master)
    if match:
        return int(match[1])
    return len(os.sched_getaffinity(0)) if "[" in master else 1


def _driver_memory_mb() -> int:
    """A quarter of the machine's memory, between 1 and 4 GiB."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return max(1024, min(4096, machine // 4))
