"""What processes use, according to Linux and to Spark's JVM."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import SparkSession


def jvm(spark: SparkSession) -> int:
    """Return the process ID of the session's JVM."""
    assert spark._jvm is not None
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    after_name = _stat(pid)
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def cpu_seconds_of_tree(pid: int) -> float:
    """Return the CPU seconds that a process and all that it has started have used, also if they have ended.

    The CPU time of a process that has ended is its parent's from when that has waited for it.
    """
    ticks = 0
    for each in tree(pid):
        try:
            ticks += sum(map(int, _stat(each)[11:15]))
        except OSError:
            continue  # it has ended
    return ticks / os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """Return a process and all that it has started and that still run, and what these have started."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (parent := _parent(int(path.name))) is not None:
            parents.setdefault(parent, []).append(int(path.name))
    found = [pid]
    for each in found:  # which grows meanwhile
        found += parents.get(each, ())
    return found


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run."""
    found = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [each for each in found if _parent(each) == pid]


def _parent(pid: int) -> int | None:
    try:
        return int(_stat(pid)[1])
    except OSError:
        return None  # it has ended


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's state after its name, as in proc_pid_stat(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def resident_mib(pid: int) -> float:
    """Return a process's resident memory in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def proportional_mib(pid: int) -> float:
    """Return the memory of a process in MiB, 0 if it has ended.

    Of what several processes share, each has a part (Pss in proc_pid_smaps(5)).
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0) / 1024


def collect_garbage(spark: SparkSession) -> None:
    """Make the JVM collect all of its garbage."""
    assert spark._jvm is not None
    spark._jvm.java.lang.System.gc()


def heap_mib(spark: SparkSession) -> float:
    """Return how much of the JVM's heap is in use, in MiB."""
    assert spark._jvm is not None
    memory = spark._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
    return float(memory.getHeapMemoryUsage().getUsed()) / 2**20
