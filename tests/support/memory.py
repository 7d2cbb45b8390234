"""How much memory processes have, and whether that grows."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from tests.support.beside import beside

MIB = 2**20
Sample = tuple[float, float]
"""Seconds, and MiB."""


def resident(group: int) -> float:
    """What the processes of a group hold of the machine's memory together, in MiB."""
    pages = 0
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                # The name may have spaces and brackets; the group is the third field after it.
                status = (process / "stat").read_text().rpartition(")")[2].split()
                pages += int((process / "statm").read_text().split()[1]) if int(status[2]) == group else 0
            except OSError:  # it has ended meanwhile
                continue
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


@contextmanager
def sampled(group: Callable[[], int | None], every_seconds: float = 5.0) -> Iterator[list[Sample]]:
    """Samples of what a group holds, until the end of the block; none while there is no group."""
    samples: list[Sample] = []

    def work(stop: threading.Event) -> None:
        while not stop.wait(every_seconds):
            number = group()
            if number is not None and (held := resident(number)):
                samples.append((time.monotonic(), held))

    with beside(work):
        yield samples


def growth(samples: Sequence[Sample]) -> float:
    """By what part the last third of the samples lies above the first one, by their medians."""
    third = len(samples) // 3
    assert third, "there are too few samples"
    first, last = (median(held for _, held in part) for part in (samples[:third], samples[-third:]))
    return last / first - 1


def slope(samples: Sequence[Sample]) -> float:
    """MiB an hour, by the method of least squares."""
    middle = sum(at for at, _ in samples) / len(samples)
    level = sum(held for _, held in samples) / len(samples)
    spread = sum((at - middle) ** 2 for at, _ in samples)
    return 3600 * sum((at - middle) * (held - level) for at, held in samples) / spread
