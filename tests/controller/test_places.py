"""A local path is refused where a pod has no volume: its own disk is read-only, or lost with it."""

from __future__ import annotations

from typing import Any

import pytest

from lakemirror.controller import places
from tests.controller.builders import merged, observed, planned, ready, reason, running, spec

VOLUMES = [{"name": "lake", "persistentVolumeClaim": {"claimName": "lake"}}]


def mounted(*roles: str, at: str = "/lake") -> dict[str, Any]:
    containers = [{"name": role, "volumeMounts": [{"name": "lake", "mountPath": at}]} for role in roles]
    return {"spark": {"podTemplate": {"spec": {"volumes": VOLUMES, "containers": containers}}}}


LOCAL: dict[str, Any] = {
    "checkpoint": "/lake/_checkpoints/shop",
    "target": {"path": "file:///lake/{schema}/{table}"},
}
FILES = {"source": {"kafka": None, "files": {"path": "/lake/in/*.csv", "format": "csv"}}}
CUSTOM = {"envelope": {"format": "custom", "fields": {"key": "id"}}}


@pytest.mark.guarantee("A local path at which a pod has no volume is refused, with the path of its field")
@pytest.mark.parametrize(
    ("change", "paths"),
    [
        ({"checkpoint": "/lake/x"}, ["spec.checkpoint: /lake/x is on the pod's own disk"]),
        ({"checkpoint": "lake/x"}, ["spec.checkpoint: lake/x is a relative path"]),
        ({"checkpoint": "file:/tmp/x"}, ["spec.checkpoint: file:/tmp/x is on"]),
        (LOCAL, ["spec.checkpoint: /lake", "spec.target.path: file:///lake/{schema}/{table} is on"]),
        ({"source": {"kafka": None, "files": {"path": "/in"}}}, ["spec.source.files.path: /in"]),
        ({"source": {"kafka": None, "changeFeed": {"path": "/t"}}}, ["spec.source.changeFeed.path: /t"]),
        ({"verify": {"snapshot": {"path": "/s/{table}"}}}, ["spec.verify.snapshot.path: /s/{table}"]),
        (
            {"tables": [{"source": "public.a", "target": {"path": "/a"}}]},
            ["spec.tables[public.a].target.path: /a is on the pod's own disk"],
        ),
        (merged(LOCAL, mounted("driver", "executor", at="/lak")), ["spec.checkpoint", "spec.target.path"]),
        (merged(LOCAL, mounted("executor")), ["spec.checkpoint", "spec.target.path"]),
        (
            merged({"checkpoint": "/lake/x"}, mounted("driver")),
            ["spec.checkpoint: /lake/x is on a volume of the driver alone"],
        ),
        (
            merged({"checkpoint": "/lake/x"}, mounted("proxy")),
            ["spec.checkpoint: /lake/x is on the pod's own"],
        ),
    ],
)
def test_a_path_on_the_disk_of_a_pod_is_refused(change: dict[str, Any], paths: list[str]) -> None:
    found = places.wrong(spec(**change))
    assert len(found) == len(paths)
    assert all(message.startswith(path) for message, path in zip(found, paths, strict=True))
    plan = planned(spec(**change), observed())
    assert (ready(plan), reason(plan, "Stalled")) == (("False", "InvalidSpec"), "InvalidSpec")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"checkpoint": "hdfs://name/x"},
        merged(LOCAL, mounted("driver", "executor")),
        merged(merged(LOCAL, FILES | CUSTOM), mounted("driver", "executor")),
        merged(LOCAL, mounted("driver", "executor", at="/")),
        merged(LOCAL, merged(mounted("driver"), {"spark": {"executors": {"max": 0}}})),
        {"checkpoint": "/x", "spark": {"conf": {"spark.hadoop.fs.defaultFS": "hdfs://name"}}},
        {
            "checkpoint": "/x",
            "spark": {
                "podTemplate": {
                    "spec": {
                        "containers": [
                            {"name": "driver", "env": [{"name": "HADOOP_CONF_DIR", "value": "/h"}]}
                        ]
                    }
                }
            },
        },
    ],
)
def test_a_path_that_pods_share_is_not(change: dict[str, Any]) -> None:
    assert places.wrong(spec(**change)) == []


def test_the_templates_of_driver_and_executors_count() -> None:
    mounts = [{"name": "lake", "mountPath": "/lake"}]
    own = {
        place: {
            "podTemplate": {
                "spec": {"volumes": VOLUMES, "containers": [{"name": role, "volumeMounts": mounts}]}
            }
        }
        for place, role in (("driver", "driver"), ("executors", "executor"))
    }
    assert places.wrong(spec(**LOCAL, spark=own)) == []


@pytest.mark.guarantee("What an operator learns to refuse stops no driver that runs with it")
def test_what_ran_before_goes_on() -> None:
    """An operator that learns to refuse a path stops no driver that has it; another such path is refused."""
    before = spec(checkpoint="/lake/x", tables=[{"source": "a", "filter": "d < now()"}])
    after = planned(before, running(before))
    assert (ready(after), reason(after, "Stalled")) == (("True", "Progressing"), None)
    edited = spec(checkpoint="/lake/y", tables=[{"source": "a", "filter": "d < now()"}])
    seen = running(before, resource={"generation": 2})
    assert reason(planned(edited, seen), "Stalled") == "ResetNeeded"
    reset = spec(checkpoint="/lake/y", spark={"resetToken": "1"})
    plan = planned(reset, seen)
    assert (ready(plan), reason(plan, "Stalled")) == (("True", "Progressing"), "InvalidSpec")


def test_wrong_sql_is_refused_before_there_is_a_pod() -> None:
    plan = planned(spec(tables=[{"source": "a", "filter": "d <"}]), observed())
    assert (ready(plan), reason(plan, "Stalled")) == (("False", "InvalidSpec"), "InvalidSpec")
