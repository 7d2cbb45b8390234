"""That what is held is seen, and what grows."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.support.memory import growth, resident, sampled, slope

_HOLDS = "held = bytearray(b'x' * 64 * 2**20); print(flush=True); input()"


def test_a_group_holds_what_its_processes_hold() -> None:
    command = [sys.executable, "-c", _HOLDS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        with sampled(lambda: os.getpgid(process.pid), 0.01) as samples:
            time.sleep(0.3)
        assert 64 < resident(process.pid) < 256
        assert samples
        assert all(64 < held < 256 for _, held in samples)
        process.stdin.close()
    assert resident(process.pid) == 0


def test_growth_and_slope() -> None:
    flat = [(float(at), 100.0 + at % 3) for at in range(0, 600, 5)]
    assert abs(growth(flat)) < 0.02
    assert abs(slope(flat)) < 10
    growing = [(at, held + at / 6) for at, held in flat]
    assert growth(growing) > 0.3
    assert slope(growing) == pytest.approx(600, rel=0.05)
