"""helm upgrade with another driverImage: drivers follow one by one, and no further than it works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.kube import Kube, eventually, never
from tests.cluster.mirror import Mirror
from tests.cluster.operator import Operator

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.guarantee(
        "A new default image is rolled out only as far as it works, and the rollout survives a restart of "
        "the operator"
    ),
]

CHART = Path(__file__).parents[2] / "charts/lakemirror"
MISSING = "lakemirror-driver:there-is-no-such-image"
Upgrade = Callable[[str], None]


@pytest.fixture
def upgrade(operator: Operator, operator_image: str, standin_image: str) -> Iterator[Upgrade]:
    """Sets another default image; at the end it is the first one again."""

    def upgrade(driver_image: str) -> None:
        operator.install(CHART, operator_image, driver_image, driverRollout__timeout="30s")

    upgrade(standin_image)
    yield upgrade
    operator.install(CHART, operator_image, standin_image)


@pytest.fixture
def mirrors(kube: Kube, upgrade: Upgrade) -> list[Mirror]:
    """Three pipelines that run, and none beside them."""
    mine = f"{kube.namespace}/"
    template = "--template={{range .items}}{{.metadata.namespace}}/{{.metadata.name}} {{end}}"
    eventually(
        lambda: all(n.startswith(mine) for n in kube.kubectl("get", "cdc", "-A", template).split()),
        within=240,  # a pod that does not heed SIGTERM keeps its pipeline for the whole grace period
        what="no pipelines of other tests",
    )
    return [Mirror(kube, name).create().ready() for name in ("a", "b", "c")]


def images(mirrors: list[Mirror]) -> list[str]:
    """The image of each driver's pod; empty where there is none just now."""
    pods = [mirror.drivers() for mirror in mirrors]
    return [found[0]["spec"]["containers"][0]["image"] if found else "" for found in pods]


def rollout(mirror: Mirror) -> str:
    return str(mirror.condition("ImageRollout").get("reason", ""))


def test_drivers_follow_one_by_one(
    mirrors: list[Mirror], upgrade: Upgrade, standin_image: str, newer_image: str
) -> None:
    upgrade(newer_image)
    restarting: set[int] = set()

    def done() -> bool:
        restarting.add(sum(mirror.condition("Ready").get("status") != "True" for mirror in mirrors))
        return images(mirrors) == [newer_image] * 3

    eventually(done, within=240, what="three drivers on the newer image", every=0.2)
    assert max(restarting) == 1
    for mirror in mirrors:
        mirror.ready()
        assert len(mirror.starts()) == 2
        assert mirror.status()["driver"]["image"] == newer_image
        eventually(lambda mirror=mirror: not rollout(mirror), what="nothing left of the rollout")  # type: ignore[misc]


def test_an_image_that_cannot_be_pulled_touches_one_driver(
    mirrors: list[Mirror], upgrade: Upgrade, operator: Operator, standin_image: str
) -> None:
    first, *others = mirrors
    upgrade(MISSING)
    eventually(lambda: rollout(first) == "RolloutFailed", within=120, what="a verdict")
    said = first.condition("ImageRollout")["message"]
    assert MISSING in said
    assert standin_image in said
    assert "driverImage" in said
    assert [e["type"] for e in first.events() if e["reason"] == "RolloutFailed"] == ["Warning"]
    for other in others:
        eventually(lambda other=other: rollout(other) == "RolloutStopped", what="others know")  # type: ignore[misc]
        assert f"{first.kube.namespace}/{first.name}" in other.condition("ImageRollout")["message"]
    others[0].edit(onBadRecord="fail")  # an edit meanwhile takes effect on the image that it has
    eventually(lambda: len(others[0].starts()) == 2, what="a restart for the edit")
    operator.scale(0)
    operator.scale(2)
    never(lambda: images(others) != [standin_image] * 2, during=20, what="another driver moved")
    for other in others:
        other.ready()

    upgrade(standin_image)
    first.ready(within=120)
    assert images(mirrors) == [standin_image] * 3
    assert [len(mirror.starts()) for mirror in mirrors] == [2, 2, 1]
    eventually(lambda: not any(map(rollout, mirrors)), what="nothing left of the rollout")


def test_who_takes_part(
    mirrors: list[Mirror], upgrade: Upgrade, standin_image: str, newer_image: str
) -> None:
    """A suspended one takes the newer image when it resumes, and one with an image of its own never does."""
    pinned, suspended, failing = mirrors
    pinned.edit(spark={"image": standin_image})
    suspended.edit(suspend=True)
    eventually(lambda: not suspended.drivers(), what="no driver")
    failing.behave(exit=1, message="no route to kafka")
    failing.wait("Ready", "False")
    healthy = Mirror(pinned.kube, "z").create().ready()
    upgrade(newer_image)
    eventually(lambda: images([healthy]) == [newer_image], within=120, what="a failing one holds nobody up")
    healthy.ready()
    eventually(lambda: images([failing]) == [newer_image], within=120, what="nor is it left behind")
    failing.behave()
    failing.ready(within=180)
    suspended.edit(suspend=False)
    suspended.ready()
    assert images([suspended, pinned]) == [newer_image, standin_image]
    assert len(pinned.starts()) == 1
