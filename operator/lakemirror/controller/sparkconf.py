"""Spark settings on Kubernetes, as far as the operator knows them. Pure.

The pod adds what only it knows (its name and address): see ``lakemirror.pod``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lakemirror.api.jvm import java_options
from lakemirror.api.secret_settings import REDACTION, redaction
from lakemirror.api.spark_settings import in_columns
from lakemirror.api.spec import PipelineSpec, Spark
from lakemirror.controller import authentication, names

EXECUTOR_TEMPLATE = "/etc/lakemirror/executor.yaml"
DRIVER_PORT, BLOCK_PORT = "7078", "7079"
"""Also what Spark takes in cluster mode, unless it is told otherwise."""
_PORT = re.compile(r"\d{1,5}")
_WITHOUT_UI = {"spark.ui.enabled": "false"}
"""The UI asks nobody for a password, and shows all settings."""
_MEMORY = re.compile(r"(\d+)(?:([kmgt])b?)?")
_CORES = re.compile(r"[0-9]{1,4}")
_LOCAL = re.compile(r"local\[\s*([0-9]{1,4})\b")
"""The number of threads of a driver that has the tasks itself."""
_OVERHEAD = 0.4
"""What a driver needs besides its heap, as a fraction of it: Python, and the JVM's own memory.

The same as Spark's for Python (spark.kubernetes.memoryOverheadFactor).
"""
_OVERHEAD_AT_LEAST_MIB = 1024
"""Measured after hundreds of batches: 280 MiB for Python, and 700 MiB for the JVM besides its heap.

The latter is for classes, their code and threads, whatever the size of the heap.
"""
_EXECUTOR_OVERHEAD = "spark.executor.minMemoryOverhead"
_EXECUTOR_OVERHEAD_AT_LEAST_MIB = 384
"""Spark's default of this setting."""
_WORKER_MIB = 768
"""What each core needs besides, for a Python worker that applies changes in columns.

Measured: 190 MiB with batches of 1,000 records of ten small tables, and 430 MiB with 100,000 records of one.
Records may be several times as large as these, 800 bytes each.
"""


def native(pipeline: str, namespace: str, spark: Spark, image: str) -> dict[str, str]:
    """Return the settings of a driver that the operator runs itself, in client mode.

    ``spark.conf`` of the spec takes precedence.
    """
    if spark.executors.max == 0:
        master = {"spark.master": f"local[{spark.driver.cores}]", "spark.driver.memory": spark.driver.memory}
        return master | spark.conf
    host = f"{names.driver(pipeline)}.{namespace}.svc"
    pull = ",".join(spark.image_pull_secrets or [])
    return {
        "spark.master": "k8s://https://kubernetes.default.svc",
        "spark.submit.deployMode": "client",
        "spark.driver.host": host,
        "spark.driver.port": DRIVER_PORT,
        "spark.driver.blockManager.port": BLOCK_PORT,
        "spark.driver.memory": spark.driver.memory,
        **_of_executors(spark),
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.executor.podNamePrefix": pipeline,
        "spark.kubernetes.executor.podTemplateFile": EXECUTOR_TEMPLATE,
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
        # Executors find all they need in the image, so the driver needs no right to create ConfigMaps.
        "spark.kubernetes.executor.disableConfigMap": "true",
        **({"spark.kubernetes.container.image.pullSecrets": pull} if pull else {}),
        **_WITHOUT_UI,
        **executors(spark),
        **spark.conf,
    }


def authenticated(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a driver whose pods mount the Secret. ``conf`` takes precedence."""
    return {**authentication.SETTINGS, **conf}


def driver_ports(spark: Spark) -> list[int]:
    """Return the ports on which executors reach their driver; none, which means any, if Spark chooses one."""
    conf = spark.conf
    blocks = conf.get("spark.driver.blockManager.port") or conf.get("spark.blockManager.port") or BLOCK_PORT
    given = (conf.get("spark.driver.port") or DRIVER_PORT, blocks)
    ports = [int(port) for port in given if _PORT.fullmatch(port) and 0 < int(port) < 65536]
    return sorted(set(ports)) if len(ports) == len(given) else []


def submitted(spec: PipelineSpec, image: str, account: str) -> dict[str, str]:
    """Return the settings of a driver that another operator submits in cluster mode.

    ``spark.conf`` of the spec takes precedence.
    """
    spark = spec.spark
    # How Spark runs a driver without executors: see spark.kubernetes.driver.master in its documentation.
    local = {"spark.kubernetes.driver.master": f"local[{spark.driver.cores}]"}
    alone = {**local, **authentication.ENCRYPTED}
    workers = alone if spark.executors.max == 0 else authenticated(executors(spark))
    hidden = {REDACTION: redaction(spark.conf.get(REDACTION, ""))}
    return {
        **_common(spark, image, account),
        **_WITHOUT_UI,
        **workers,
        **spark.conf,
        **_java_options(spec),
        **hidden,
    }


def _common(spark: Spark, image: str, account: str) -> dict[str, str]:
    return {
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.authenticate.driver.serviceAccountName": account,
        "spark.driver.cores": str(spark.driver.cores),
        "spark.driver.memory": spark.driver.memory,
        "spark.driver.minMemoryOverhead": f"{_driver_overhead_mib(spark)}m",
        **_of_executors(spark),
        "spark.kubernetes.driver.podTemplateContainerName": "spark-kubernetes-driver",
        "spark.kubernetes.executor.podTemplateContainerName": "spark-kubernetes-executor",
        "spark.kubernetes.executor.disableConfigMap": "true",
    }


def _of_executors(spark: Spark) -> dict[str, str]:
    least = _executor_overhead_mib(spark)
    return {
        "spark.executor.memory": spark.executors.memory,
        "spark.executor.cores": str(spark.executors.cores),
        **({_EXECUTOR_OVERHEAD: f"{least}m"} if least > _EXECUTOR_OVERHEAD_AT_LEAST_MIB else {}),
    }


def _java_options(spec: PipelineSpec) -> dict[str, str]:
    """Return the options of the JVMs, the same as for those that `lakemirror run` starts."""
    settings = [f"spark.{role}.extraJavaOptions" for role in ("driver", "executor")]
    return {name: java_options(spec.spark.conf.get(name, ""), spec.java_properties) for name in settings}


def executors(spark: Spark) -> dict[str, str]:
    """Return the settings for the number of executors: fixed, or by load between two bounds."""
    low, high = spark.executors.min, spark.executors.max
    if low == high:
        return {"spark.executor.instances": str(high)}
    return {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": str(low),
        "spark.dynamicAllocation.initialExecutors": str(max(low, 1)),
        "spark.dynamicAllocation.maxExecutors": str(high),
    }


def driver_memory(spark: Spark) -> str:
    """Return the memory of the driver's container: its heap and what it needs besides.

    Settings of Spark in ``spark.conf`` take precedence, as they do for the JVM.
    """
    heap = _mib(spark.conf.get("spark.driver.memory", "")) or _mib(spark.driver.memory)
    overhead = _mib(spark.conf.get("spark.driver.memoryOverhead", ""))
    return f"{heap + (overhead or max(int(heap * _OVERHEAD), _driver_overhead_mib(spark)))}Mi"


def driver_cpu(spark: Spark) -> str:
    """Return the CPU that the driver's container requests."""
    return spark.conf.get("spark.kubernetes.driver.request.cores", str(spark.driver.cores))


def executor_memory(spark: Spark) -> str:
    """Return the memory that Spark requests for an executor: its heap, and a tenth or more besides."""
    heap = _mib(spark.conf.get("spark.executor.memory", "")) or _mib(spark.executors.memory)
    overhead = _mib(spark.conf.get("spark.executor.memoryOverhead", ""))
    return f"{heap + (overhead or max(heap // 10, _executor_overhead_mib(spark)))}Mi"


def _driver_overhead_mib(spark: Spark) -> int:
    """Return the least that a driver needs besides its heap. Without executors, it has their tasks."""
    if spark.executors.max > 0:
        return _OVERHEAD_AT_LEAST_MIB
    master = _LOCAL.match(spark.conf.get("spark.master", ""))
    return _OVERHEAD_AT_LEAST_MIB + _workers_mib(spark, int(master[1]) if master else spark.driver.cores)


def _executor_overhead_mib(spark: Spark) -> int:
    cores = spark.conf.get("spark.executor.cores", "")
    number = int(cores) if _CORES.fullmatch(cores) else spark.executors.cores
    return _EXECUTOR_OVERHEAD_AT_LEAST_MIB + _workers_mib(spark, number)


def _workers_mib(spark: Spark, cores: int) -> int:
    """Return what the Python workers of a pod need, if changes are applied in columns."""
    return cores * _WORKER_MIB if in_columns(spark.conf) else 0


def executor_cpu(spark: Spark) -> str:
    """Return the CPU that Spark requests for an executor."""
    return spark.conf.get("spark.kubernetes.executor.request.cores", str(spark.executors.cores))


def _mib(memory: str) -> int:
    """Return an amount of memory in MiB, Spark's default unit; 0 if it is none (JavaUtils.byteStringAs)."""
    found = _MEMORY.fullmatch(memory.strip().lower())
    if found is None:
        return 0
    number, unit = int(found[1]), found[2] or "m"
    return max(1, number // 1024 if unit == "k" else number * {"m": 1, "g": 1024, "t": 1024**2}[unit])
