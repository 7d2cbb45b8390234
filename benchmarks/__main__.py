"""`python -m benchmarks`: measures all parts, or those that are named, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from types import ModuleType

from benchmarks import report
from benchmarks.options import Options, environment, options_of, parser
from benchmarks.parts import (
    ablation,
    apply,
    backlog,
    executors,
    footprint,
    large,
    latency,
    memory,
    mixes,
    operator,
    scale,
    start,
    tables,
    year,
)

PARTS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        apply,
        ablation,
        mixes,
        scale,
        large,
        tables,
        executors,
        backlog,
        latency,
        start,
        memory,
        footprint,
        operator,
        year,
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the parts and return 1 if one failed. The figures of a failed part stay as they were."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = parser(list(PARTS))
    said = command.parse_args(given)
    unknown = [name for name in said.part if name not in PARTS]
    if unknown:
        command.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if len(said.part) == 1:
        measure(said.part[0], options_of(said))
        return 0
    wanted = said.part or list(PARTS)
    rest = [word for word in given if word not in said.part]
    failed = [name for name in wanted if subprocess.call([sys.executable, "-m", "benchmarks", name, *rest])]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def measure(name: str, options: Options) -> None:
    """Measure one part and rewrite the report."""
    print(f"{name} ...", flush=True)
    began = time.monotonic()
    figures = PARTS[name].run(options)
    measured = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "environment": environment(options.memory),
        "figures": figures,
    }
    report.write(options.results, PARTS, report.store(options.results, name, measured))
    shown = f"skipped: {figures['skipped']}" if "skipped" in figures else PARTS[name].text(figures)
    print(f"{shown}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
