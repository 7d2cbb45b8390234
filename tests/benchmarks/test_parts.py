"""Small runs of the parts: they end, and what they compare is equal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import PARTS
from tests.support.kafka_broker import Broker


def measure(part: str, folder: Path, *options: str) -> dict[str, Any]:
    where = ("--work", str(folder / "work"), "--results", str(folder))
    command = [sys.executable, "-m", "benchmarks", part, "--quick", "--memory", "2g", *where, *options]
    subprocess.run(command, check=True)
    return json.loads((folder / "RESULTS.json").read_text())[part]["figures"]


ELSEWHERE = ("latency", "backlog", "apply", "operator")
"""Parts that need a broker or a cluster, or have a test of their own."""


@pytest.mark.bench
@pytest.mark.parametrize("part", [name for name in PARTS if name not in ELSEWHERE])
def test_a_small_run_of_a_part(tmp_path: Path, part: str) -> None:
    assert measure(part, tmp_path)
    assert f"## {PARTS[part].TITLE}" in (tmp_path / "RESULTS.md").read_text()
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.bench
def test_all_contenders_end_with_the_rows_of_the_source(tmp_path: Path) -> None:
    (group,) = measure("apply", tmp_path)["groups"]
    equal = {lane["name"]: lane["equal"] for lane in group["lanes"]}
    assert equal.pop("floor") is None
    assert len(equal) == 4
    assert all(equal.values())


@pytest.mark.bench
@pytest.mark.sources
def test_a_small_backlog_becomes_the_rows_of_the_source(tmp_path: Path, kafka: Broker) -> None:
    found = measure("backlog", tmp_path, "--kafka", kafka.bootstrap)
    assert [each["equal"] for each in found["runs"]["lakemirror"]] == [True]


@pytest.mark.bench
@pytest.mark.cluster
def test_an_operator_that_starts_again_writes_nothing(tmp_path: Path) -> None:
    if "KUBECONFIG" not in os.environ:
        pytest.skip("KUBECONFIG names no cluster")
    (size,) = measure("operator", tmp_path, "--kubeconfig", os.environ["KUBECONFIG"])["sizes"]
    assert size["restart"]["written"] == 0
    assert size["idle"]["statuses"] == 0
