"""Options of the JVMs of Spark's driver and executors."""

from __future__ import annotations

import re
from collections.abc import Mapping

_COLLECTOR = re.compile(r"-XX:\+Use(Serial|Parallel|G1|Z|Shenandoah|Epsilon)GC\b")


def java_options(own: str, properties: Mapping[str, str]) -> str:
    """Return our options, the system ``properties`` that a spec needs, and then a user's ``own`` options.

    The user's options may name another garbage collector. UTC is set because in other time zones, Delta
    checks with every commit that its checksum file agrees with the whole log. The parallel collector is set
    because a batch has no use for short pauses, and G1 took a tenth of the CPU time.
    """
    collector = "" if _COLLECTOR.search(own) else "-XX:+UseParallelGC"
    defined = [f"-D{name}={value}" for name, value in properties.items()]
    return " ".join(filter(None, ("-Duser.timezone=UTC", collector, *defined, own.strip())))
