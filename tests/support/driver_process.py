"""Drivers as processes of their own, for tests that kill them or put them to sleep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.mirroring import Mirroring
from tests.support.store_mirroring import StoreMirroring

ROOT = Path(__file__).parents[2]
LEASE_SECONDS = 8
_MAIN = (
    "from lakemirror.driver.checkpoint.owner import Owner; "
    f"Owner.__init__.__kwdefaults__['lease_seconds'] = {LEASE_SECONDS}; "
    "from lakemirror.cli.main import main; main()"
)
"""`lakemirror`, with a lease that a test can wait for."""


@contextmanager
def driver(mirroring: Mirroring, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`lakemirror run` as a process of its own, whose group has its JVM too; killed at the end."""
    running = subprocess.Popen(
        [sys.executable, "-c", _MAIN, "run", "-f", str(mirroring.manifest), *options],
        cwd=mirroring.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "operator"), "LAKEMIRROR_OBJECT_STORES": "s3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield running
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=30)


def killed_while_it_writes(mirroring: StoreMirroring, seconds: float) -> None:
    """Run a driver, and kill it so many ``seconds`` after it has begun to write, unless it is done."""
    before = mirroring.bucket.proxy.puts
    with driver(mirroring, "--once") as running:
        wait_for(lambda: mirroring.bucket.proxy.puts > before + 3 or running.poll() is not None)
        time.sleep(seconds)
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
        said, _ = running.communicate(timeout=30)
    assert running.returncode in (-signal.SIGKILL, 0), said[-2000:]


def wait_for(happened: Callable[[], bool], seconds: float = 180) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "did not happen in time"
        time.sleep(0.02)
