"""helm upgrade from the version before, under running drivers: no driver is restarted, and all goes on.

The version before is the newest tag of a release before this commit; ``LAKEMIRROR_FORMER`` names another
commit. ``LAKEMIRROR_FORMER_OPERATOR_IMAGE`` names its operator's image, where it is in the cluster already.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.conftest import Build
from tests.cluster.kube import Kube, Object, eventually, never
from tests.cluster.mirror import Mirror
from tests.cluster.operator import CRD, OPERATORS, RELEASE, Operator

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.guarantee(
        "An upgrade of the chart, or going back, restarts no driver, and the other operator goes on where "
        "the first one stopped"
    ),
]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/lakemirror"
QUIET = 20
"""Seconds in which nothing may happen."""
BAD_TOPICS = {"kafka": {"topics": None, "topicPattern": "a(b"}}


@pytest.fixture(scope="session")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the version before."""
    reference = os.environ.get("LAKEMIRROR_FORMER") or newest_tag()
    if not reference:
        pytest.skip("no version was released before this one: LAKEMIRROR_FORMER names a commit instead")
    folder = tmp_path_factory.mktemp("former")
    archive = subprocess.run(
        ["git", "archive", "--format=tar", reference], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def newest_tag() -> str:
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture(scope="session")
def former_image(former: Path, build: Build) -> str:
    given = os.environ.get("LAKEMIRROR_FORMER_OPERATOR_IMAGE")
    return given or build("lakemirror-operator-former", former, "--target", "operator")


@pytest.fixture
def operator(
    installed: Operator, former: Path, former_image: str, operator_image: str, standin_image: str
) -> Iterator[Operator]:
    """The operator and the CRD of the version before; at the end this version's."""
    installed.uninstall()
    eventually(lambda: installed.kube.get("namespace", OPERATORS) is None, within=120, what="it is gone")
    installed.install(former / "charts/lakemirror", former_image, standin_image)
    yield installed
    installed.install(CHART, operator_image, standin_image)


@pytest.fixture
def mirrors(kube: Kube) -> dict[str, Mirror]:
    """A pipeline in each of the states that an upgrade may meet."""
    found = {name: Mirror(kube, name) for name in ("works", "fails", "rests", "mistaken", "stands-still")}
    for mirror in found.values():
        mirror.create().ready()
    found["fails"].behave(exit=1, message="no route to kafka")
    found["fails"].wait("Ready", "False")
    found["rests"].edit(suspend=True)
    eventually(lambda: not found["rests"].drivers(), what="no driver")
    found["mistaken"].edit(source=BAD_TOPICS)
    found["mistaken"].wait("Stalled", reason="InvalidSpec")
    found["stands-still"].behave(lag=1000)
    eventually(lambda: lag(found["stands-still"]) == 1000, what="a lag")
    return found


def lag(mirror: Mirror) -> int | None:
    found: int | None = mirror.status().get("checkpoint", {}).get("lagRecords")
    return found


def drivers(mirrors: dict[str, Mirror]) -> dict[str, list[Any]]:
    """Of each pipeline the pods of its driver, with how often their containers were restarted. One that fails
    is restarted all the time.
    """
    return {
        name: [
            (pod["metadata"]["uid"], [each["restartCount"] for each in pod["status"]["containerStatuses"]])
            for pod in mirror.drivers()
        ]
        for name, mirror in mirrors.items()
        if name != "fails"
    }


def verdicts(mirrors: dict[str, Mirror]) -> dict[str, dict[str, tuple[str, str]]]:
    """What is said of each pipeline: its conditions, with status and reason."""
    return {
        name: {
            each["type"]: (each["status"], each["reason"]) for each in mirror.status().get("conditions", [])
        }
        for name, mirror in mirrors.items()
        if name != "fails"
    }


def schema(operator: Operator) -> Object:
    """The schema that the API server has of CdcPipelines."""
    crd = operator.kube.get("crd", CRD)
    assert crd is not None
    found: Object = crd["spec"]["versions"][0]["schema"]
    return found


def of_chart(chart: Path) -> Object:
    """The schema that a chart brings."""
    document = yaml.safe_load((chart / f"files/{CRD}.yaml").read_text())
    found: Object = document["spec"]["versions"][0]["schema"]
    return found


def test_no_driver_is_restarted_by_an_upgrade_or_by_going_back(
    mirrors: dict[str, Mirror],
    operator: Operator,
    former: Path,
    former_image: str,
    operator_image: str,
    standin_image: str,
) -> None:
    running, said = drivers(mirrors), verdicts(mirrors)
    assert [len(running[name]) for name in ("works", "rests", "mistaken", "stands-still")] == [1, 0, 1, 1]
    starts = {name: len(mirror.starts()) for name, mirror in mirrors.items() if name != "fails"}

    operator.install(CHART, operator_image, standin_image)
    assert schema(operator) == of_chart(CHART)
    never(lambda: drivers(mirrors) != running, during=QUIET, what="another driver")
    assert verdicts(mirrors) == said
    assert mirrors["fails"].condition("Ready")["status"] == "False"
    _go_on(mirrors, starts)

    running = drivers(mirrors)
    operator.kube.run("helm", "rollback", RELEASE, "--wait", "--timeout", "120s")
    eventually(lambda: _images(operator) == {former_image}, within=120, what="the operator before")
    assert schema(operator) == of_chart(former / "charts/lakemirror")
    never(lambda: drivers(mirrors) != running, during=QUIET, what="another driver")
    starts = {name: len(mirror.starts()) for name, mirror in mirrors.items() if name != "fails"}
    _go_on(mirrors, starts)


def _go_on(mirrors: dict[str, Mirror], starts: dict[str, int]) -> None:
    """The operator that is there now acts on all that the other one has left: each pipeline can be edited and
    does what it should, with one restart where one is due.
    """
    works, fails, rests = (mirrors[name] for name in ("works", "fails", "rests"))
    works.edit(restartToken=f"{starts['works']}")
    eventually(lambda: len(works.starts()) == starts["works"] + 1, within=120, what="a restart")
    works.ready()
    fails.behave()
    fails.ready(within=240)
    fails.behave(exit=1, message="no route to kafka")
    fails.wait("Ready", "False", within=120)
    rests.edit(suspend=False)
    rests.ready()
    assert len(rests.starts()) == starts["rests"] + 1
    rests.edit(suspend=True)
    eventually(lambda: not rests.drivers(), what="no driver")
    mistaken = mirrors["mistaken"]
    assert mistaken.condition("Stalled")["reason"] == "InvalidSpec"
    mistaken.edit(source={"kafka": {"topicPattern": None, "topics": [mistaken.name]}})
    mistaken.ready()
    assert len(mistaken.starts()) == starts["mistaken"]
    mistaken.edit(source=BAD_TOPICS)
    mistaken.wait("Stalled", reason="InvalidSpec")
    still = mirrors["stands-still"]
    still.behave(lag=2000)
    eventually(lambda: lag(still) == 2000, what="its reports are read")
    still.behave(lag=1000)
    eventually(lambda: lag(still) == 1000, what="its reports are read")
    assert len(still.starts()) == starts["stands-still"]


def _images(operator: Operator) -> set[str]:
    """The images of the operators that are there."""
    return {each["spec"]["containers"][0]["image"] for each in operator.pods()}
