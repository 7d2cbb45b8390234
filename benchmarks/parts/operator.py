"""Measures what the operator needs to manage many pipelines, on an API server from the command line."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.cluster import Cluster
from benchmarks.fleet import PERIOD_SECONDS, Fleet, each, paced, rounds
from benchmarks.markdown import table
from benchmarks.options import Options
from benchmarks.processes import cpu_seconds, resident_mib
from benchmarks.stats import percentile
from tests.support.ports import free_port

TITLE = "Operator"
_REPORTS_A_MINUTE = 1000
_EDITS = 20
_SECONDS_A_PIPELINE = 1.0
"""The most time that a phase may take for each pipeline, in addition to one minute."""
_SHOWN = (0.5, 0.95, 1.0)
_READS = ("get", "list", "watch")


def run(options: Options) -> dict[str, Any]:
    """Measure all sizes in turn, each with an operator of its own and nothing else in the cluster."""
    if options.kubeconfig is None:
        return {"skipped": "--kubeconfig names no cluster: a thousand pipelines are not made by accident"}
    os.environ["KUBECONFIG"] = str(options.kubeconfig.absolute())
    sizes = options.pipelines or ([20] if options.quick else [100, 1000, 5000])
    with options.folder("operator") as folder:
        return {"sizes": [asyncio.run(_measure(size, folder, options.quick)) for size in sizes]}


async def _measure(size: int, folder: Path, quick: bool) -> dict[str, Any]:
    seconds = 5.0 if quick else 90.0
    patience = 60 + size * _SECONDS_A_PIPELINE
    async with Cluster() as cluster, Fleet(cluster, size) as fleet:
        figures: dict[str, Any] = {"pipelines": size, "kubernetes": await _version(cluster)}
        with Operator(folder / "operator.log", fleet.namespaces[0]) as operator:
            await operator.until_it_acts()
            for name, phase in _PHASES.items():
                before = await operator.state()
                measured = await phase(fleet, seconds, patience)
                figures[name] = {**measured, **_spent(before, await operator.state())}
                print(f"  {size:,} pipelines, {name}: {figures[name]}", flush=True)
            figures["load"] = os.getloadavg()[1]
            async with _alive(fleet):
                figures["restart"] = await _restart(operator, size, patience)
            print(f"  {size:,} pipelines, restart: {figures['restart']}", flush=True)
    return figures


async def _version(cluster: Cluster) -> str:
    return str((await cluster.ask("GET", "/version"))["gitVersion"])


# What is measured, in this order


async def _create(fleet: Fleet, _: float, patience: float) -> dict[str, Any]:
    """Create all pipelines, and wait until each has a first status: waiting for its driver."""
    began = time.monotonic()
    await each(fleet.mirrors, fleet.create)
    made = time.monotonic() - began
    await fleet.until(lambda: all(mirror.seen is not None for mirror in fleet.mirrors), patience)
    waited = [mirror.seen - mirror.created for mirror in fleet.mirrors if mirror.seen is not None]
    return {"made": made, "seconds": time.monotonic() - began, "waited": _quantiles(waited)}


async def _start(fleet: Fleet, _: float, patience: float) -> dict[str, Any]:
    """Start all drivers, which report their first batch, and wait until that is in each status."""
    began = time.monotonic()
    async with _alive(fleet):
        await each(fleet.namespaces, fleet.start)
        started = time.monotonic() - began
        await fleet.until(lambda: not any(mirror.sent for mirror in fleet.mirrors), patience)
    return {"started": started, "seconds": time.monotonic() - began}


async def _idle(fleet: Fleet, seconds: float, _: float) -> dict[str, Any]:
    """Let drivers that have nothing to do report so, as often as real drivers do."""
    rate = len(fleet.mirrors) / PERIOD_SECONDS
    before = {mirror.name: mirror.version for mirror in fleet.mirrors}
    began = time.monotonic()
    await paced(rounds(fleet, int(rate * seconds), news=False), rate)
    written = sum(mirror.version != before[mirror.name] for mirror in fleet.mirrors)
    return {"seconds": time.monotonic() - began, "reports": rate * 60, "statuses": written}


async def _report(fleet: Fleet, seconds: float, patience: float) -> dict[str, Any]:
    """In addition, let this many reports a minute be about a new batch."""
    rate = _REPORTS_A_MINUTE / 60
    for mirror in fleet.mirrors:
        mirror.lateness.clear()
    began = time.monotonic()
    async with _alive(fleet):
        await paced(rounds(fleet, int(rate * seconds), news=True), rate)
        ended = time.monotonic() - began
        await fleet.until(lambda: not any(mirror.sent for mirror in fleet.mirrors), patience)
    late = [each for mirror in fleet.mirrors for each in mirror.lateness]
    return {"seconds": ended, "reports": len(late) / ended * 60, "late": _quantiles(late)}


async def _edit(fleet: Fleet, _: float, __: float) -> dict[str, Any]:
    """Edit one pipeline after the other."""
    began = time.monotonic()
    async with _alive(fleet):
        edits = [
            await fleet.edit(mirror, progressDeadline=f"{20 + number}m")
            for number, mirror in enumerate(fleet.mirrors[:: max(1, len(fleet.mirrors) // _EDITS)][:_EDITS])
        ]
    return {"seconds": time.monotonic() - began, "late": _quantiles(edits)}


_PHASES = {"create": _create, "start": _start, "idle": _idle, "report": _report, "edit": _edit}


class _alive:  # noqa: N801
    """Keeps drivers reporting in the meantime that they are well."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def __aenter__(self) -> None:
        endless = rounds(self._fleet, sys.maxsize, news=False)
        self._task = asyncio.create_task(paced(endless, len(self._fleet.mirrors) / PERIOD_SECONDS))

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def _restart(operator: Operator, size: int, patience: float) -> dict[str, Any]:
    """Restart the process, and wait until it has seen all pipelines.

    The figures include what it wrote even though nothing had changed.
    """
    operator.stop()
    began = time.monotonic()
    operator.start()
    await operator.until_it_acts()
    acts = time.monotonic() - began
    while (found := await operator.state())["passes"] < size:
        if time.monotonic() - began > patience:
            raise TimeoutError(f"{found['passes']:.0f} of {size} were seen")
        await asyncio.sleep(1)
    seconds = time.monotonic() - began
    await asyncio.sleep(10)
    end = await operator.state()
    asked = {name: number for name, number in end["asked"].items() if not name.endswith(" Lease")}
    written = sum(number for name, number in asked.items() if name.split()[0] not in _READS)
    return {
        "acts": acts,
        "seconds": seconds,
        "cpu": found["cpu"],
        "mib": end["mib"],
        "passes": end["passes"],
        "written": written,
        "asked": asked,
    }


def text(figures: dict[str, Any]) -> str:
    """Return a table of what each size took, and one of the requests of an idle operator."""
    sizes = figures["sizes"]
    header = ("pipelines", *(f"{size['pipelines']:,}" for size in sizes))
    lines = [[name, *(show(size) for size in sizes)] for name, show in _LINES.items()]
    kinds = sorted({name for size in sizes for name in size["idle"]["asked"]})
    asked = [[name, *(f"{_a_minute(size['idle'], name):,.1f}" for size in sizes)] for name in kinds]
    about = (
        f"On Kubernetes {sizes[0]['kubernetes']}, with stand-ins for the drivers' pods that report "
        f"{60 / PERIOD_SECONDS:.0f} times a minute each. Late: from the report to the status that tells of "
        "it; median, 95 of 100, all."
    )
    idle = "Requests of the operator a minute, when drivers have nothing to do but say so:"
    return f"{about}\n\n{table(header, lines)}\n\n{idle}\n\n{table(header, asked)}"


_LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    "s until all were made": lambda size: f"{size['create']['made']:.0f}",
    "s until all had a status": lambda size: f"{size['create']['seconds']:.0f}",
    "s until one had a status": lambda size: _shown(size["create"]["waited"]),
    "operator's CPU s for that": lambda size: f"{size['create']['cpu']:.0f}",
    "its requests for each": lambda size: _for_each(size, "create"),
    "s until all drivers ran and had reported": lambda size: f"{size['start']['seconds']:.0f}",
    "idle: reports a minute": lambda size: f"{size['idle']['reports']:,.0f}",
    "idle: cores": lambda size: f"{size['idle']['cpu'] / size['idle']['seconds']:.2f}",
    "idle: requests a minute": lambda size: f"{_a_minute(size['idle']):,.0f}",
    "idle: MiB": lambda size: f"{size['idle']['mib']:.0f}",
    "reports with news a minute": lambda size: f"{size['report']['reports']:,.0f}",
    "these: s late": lambda size: _shown(size["report"]["late"]),
    "these: cores": lambda size: f"{size['report']['cpu'] / size['report']['seconds']:.2f}",
    "an edit: s to the status": lambda size: _shown(size["edit"]["late"]),
    "restart: s until it acts": lambda size: f"{size['restart']['acts']:.1f}",
    "restart: s until it has seen all": lambda size: f"{size['restart']['seconds']:.0f}",
    "restart: CPU s": lambda size: f"{size['restart']['cpu']:.0f}",
    "restart: requests that write": lambda size: f"{size['restart']['written']:.0f}",
    "restart: MiB": lambda size: f"{size['restart']['mib']:.0f}",
}


def _shown(quantiles: list[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in quantiles)


def _for_each(size: Mapping[str, Any], phase: str) -> str:
    return f"{sum(size[phase]['asked'].values()) / size['pipelines']:.1f}"


def _a_minute(phase: Mapping[str, Any], name: str | None = None) -> float:
    asked: Mapping[str, float] = phase["asked"]
    number = sum(asked.values()) if name is None else asked.get(name, 0)
    return number * 60 / float(phase["seconds"])


def plots(_: dict[str, Any]) -> dict[str, str]:
    """Return no plots."""
    return {}


def _spent(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    asked = Counter(after["asked"])
    asked.subtract(before["asked"])
    return {
        "cpu": after["cpu"] - before["cpu"],
        "passes": after["passes"] - before["passes"],
        "mib": after["mib"],
        "asked": {name: number for name, number in sorted(asked.items()) if number},
    }


def _quantiles(seconds: list[float]) -> list[float]:
    return [round(percentile(seconds, share), 3) for share in _SHOWN]


class Operator:
    """An operator from this checkout, in a process of its own. A context manager."""

    def __init__(self, log: Path, namespace: str) -> None:
        self._log, self._namespace, self._port = log, namespace, free_port()

    def __enter__(self) -> Operator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        command = [sys.executable, "-m", "lakemirror.cli.main", "operator", "--driver-image", "driver:1"]
        environment = {**os.environ, "POD_NAMESPACE": self._namespace}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--port", str(self._port), "--log-level", "warning"],
                env=environment,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        """Ask the process to end, and wait until it has."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=60)

    async def until_it_acts(self) -> None:
        """Wait until it holds its Lease."""
        async with asyncio.timeout(60):
            while True:
                try:
                    if (await self._figures()).get("lakemirror_operator_leader") == 1:
                        return
                except aiohttp.ClientError:
                    if self._process.poll() is not None:
                        raise RuntimeError(f"the operator has ended: see {self._log}") from None
                await asyncio.sleep(0.2)

    async def state(self) -> dict[str, Any]:
        """Return what it has used and done since its start."""
        cpu, mib = cpu_seconds(self._process.pid), resident_mib(self._process.pid)
        figures = await self._figures()
        head = "lakemirror_operator_api_requests_total"
        asked = {
            " ".join(reversed(re.findall('"(.*?)"', name))): number
            for name, number in figures.items()
            if name.startswith(head)
        }
        passes = figures.get('lakemirror_operator_passes_total{result="done"}', 0.0)
        return {"cpu": cpu, "mib": mib, "asked": asked, "passes": passes}

    async def _figures(self) -> dict[str, float]:
        where = f"http://127.0.0.1:{self._port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(where) as answer:
            text: str = await answer.text()
            return dict(_samples(text))


def _samples(text: str) -> Iterator[tuple[str, float]]:
    """Yield the operator's own samples, by name and labels. Those of pipelines are many, and are left out."""
    for line in text.splitlines():
        if line.startswith("lakemirror_operator_"):
            name, _, value = line.rpartition(" ")
            yield name, float(value)
