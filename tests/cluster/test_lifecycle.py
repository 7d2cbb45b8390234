"""What a change of the resource, a failure or a neighbour does to the driver, and what it does not."""

from __future__ import annotations

import os
import shlex
import subprocess
import time

import pytest

from tests.cluster.kube import Kube, KubectlFailed, eventually, never
from tests.cluster.mirror import SMALL, Mirror, merged
from tests.cluster.node import silent_node
from tests.cluster.operator import Operator

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.guarantee("Pipelines run on a real cluster"),
]

QUIET = 10
"""Seconds in which nothing may happen."""


def stays_at(mirror: Mirror, starts: int) -> None:
    """The driver is started no more often."""
    never(lambda: len(mirror.starts()) > starts, during=QUIET, what=f"more than {starts} starts")


# Changes


def test_a_change_that_needs_it_restarts_once(mirror: Mirror) -> None:
    mirror.create().ready()
    mirror.edit(onBadRecord="fail")
    eventually(lambda: len(mirror.starts()) == 2, what="a restart")
    mirror.ready()
    stays_at(mirror, 2)
    assert mirror.starts()[-1]["onBadRecord"] == "fail"
    assert [line["what"] for line in mirror.journal()] == ["start", "end", "start"]


def test_a_change_that_needs_none_leaves_the_driver_alone(mirror: Mirror) -> None:
    mirror.create().ready()
    before = mirror.uid()
    mirror.seen(mirror.edit(progressDeadline="20m", restart={"backoffLimit": 3}))
    stays_at(mirror, 1)
    assert mirror.uid() == before
    mirror.ready()


def test_edits_that_come_while_a_driver_ends_are_taken_together(mirror: Mirror) -> None:
    mirror.create().ready()
    mirror.behave(stubborn=True)  # it ends when the last edit is seen, however long that takes here
    mirror.edit(tombstones={"retention": "1d"})
    eventually(lambda: mirror.drivers()[0]["metadata"].get("deletionTimestamp"), what="a driver that ends")
    for retention in ("2d", "3d", "4d", "5d"):
        mirror.seen(mirror.edit(tombstones={"retention": retention}))
    mirror.behave()
    eventually(lambda: len(mirror.starts()) == 2, what="a restart")
    mirror.ready()
    assert mirror.starts()[-1]["tombstones"] == {"retention": "5d"}
    stays_at(mirror, 2)


def test_an_edit_while_the_operator_is_down_is_applied_once(mirror: Mirror, operator: Operator) -> None:
    mirror.create().ready()
    operator.scale(0)
    mirror.edit(schemaEvolution="skip")
    mirror.edit(restartToken="again")
    operator.scale(2)
    eventually(lambda: len(mirror.starts()) == 2, what="a restart")
    mirror.ready()
    stays_at(mirror, 2)


def test_an_invalid_edit_leaves_the_running_driver_alone(mirror: Mirror) -> None:
    mirror.create().ready()
    mirror.edit(source={"kafka": {"topics": None, "topicPattern": "a(b"}})
    assert "topicPattern" in mirror.wait("Stalled", reason="InvalidSpec")["message"]
    stays_at(mirror, 1)
    assert len(mirror.drivers()) == 1
    mirror.edit(source={"kafka": {"topicPattern": None, "topics": [mirror.name]}})
    mirror.ready()
    assert not mirror.condition("Stalled")
    stays_at(mirror, 1)


def test_an_invalid_edit_survives_a_restart_of_the_operator(mirror: Mirror, operator: Operator) -> None:
    """The last good spec is kept in the cluster, not in the operator."""
    mirror.create().ready()
    mirror.edit(source={"kafka": {"topics": None, "topicPattern": "a(b"}})
    mirror.wait("Stalled", reason="InvalidSpec")
    operator.scale(0)
    operator.scale(2)
    stays_at(mirror, 1)
    mirror.kube.kubectl("delete", "pod", f"{mirror.name}-driver-0")
    eventually(lambda: len(mirror.starts()) == 2, what="the driver back")
    assert mirror.starts()[-1]["source"] == mirror.starts()[0]["source"]


@pytest.mark.parametrize(
    ("change", "by_api"),
    [
        ({"target": {"path": "s3a://elsewhere/{table}"}}, True),
        ({"source": {"kafka": None, "files": {"path": "s3a://in", "format": "records"}}}, True),
        ({"checkpoint": "s3a://elsewhere/_checkpoint"}, True),
        ({"tables": [{"source": "public.items", "primaryKey": ["other"]}]}, False),
    ],
    ids=["target", "source", "checkpoint", "key"],
)
def test_what_the_checkpoint_cannot_follow_waits_for_a_reset_token(
    mirror: Mirror,
    change: dict,  # type: ignore[type-arg]
    by_api: bool,
) -> None:
    mirror.create(tables=[{"source": "public.items", "primaryKey": ["id"]}]).ready()
    mirror.behave(commits=True)
    eventually(lambda: mirror.status()["checkpoint"].get("batchId"), what="a batch that the checkpoint knows")
    if by_api:
        with pytest.raises(KubectlFailed, match="resetToken"):
            mirror.edit(**change)
    else:
        mirror.edit(**change)
        # A mirror keeps its key: the message offers another target, though a reset is accepted, too.
        assert "resyncToken" in mirror.wait("Stalled", reason="ResetNeeded")["message"]
    stays_at(mirror, 1)
    mirror.edit(**change, spark={"resetToken": "yes"})
    eventually(lambda: len(mirror.starts()) == 2, what="a start with the new spec")
    mirror.ready()
    assert mirror.status()["handled"]["resetToken"] == "yes"
    stays_at(mirror, 2)


# Tokens


def test_suspend_and_resume(mirror: Mirror) -> None:
    mirror.create().ready()
    mirror.edit(suspend=True)
    mirror.wait("Ready", reason="Suspended")
    eventually(lambda: not mirror.drivers(), what="no driver")
    assert mirror.status()["phase"] == "Suspended"
    assert not mirror.condition("Stalled")
    mirror.edit(suspend=False)
    mirror.ready()
    assert [line["what"] for line in mirror.journal()] == ["start", "end", "start"]


def test_a_restart_token_restarts_once(mirror: Mirror) -> None:
    mirror.create().ready()
    mirror.edit(restartToken="2026-01-01")
    eventually(lambda: len(mirror.starts()) == 2, what="a restart")
    mirror.ready()
    assert mirror.status()["handled"]["restartToken"] == "2026-01-01"
    stays_at(mirror, 2)


def test_a_table_is_resynced_once(mirror: Mirror) -> None:
    mirror.create().ready()
    mirror.edit(tables=[{"source": "public.items", "resyncToken": "r1"}])
    eventually(lambda: mirror.status().get("handled", {}).get("resync") == {"public.items": "r1"})
    mirror.ready()
    stays_at(mirror, len(mirror.starts()))


# Deletion


def test_deletion_waits_for_the_data_only_when_asked_to(mirror: Mirror) -> None:
    mirror.create(deletionPolicy="DeleteAll").ready()
    assert mirror.resource()["metadata"]["finalizers"]
    mirror.delete("--wait=false")
    mirror.gone(within=120)
    noted = [line["what"] for line in mirror.journal()]
    assert noted[:2] == ["start", "end"], "the driver has ended before its data goes"
    assert len(noted) == 3
    assert "cleanup" in noted[2]


def test_a_policy_taken_back_takes_the_finalizer_along(mirror: Mirror) -> None:
    mirror.create(deletionPolicy="DeleteCheckpoint").ready()
    assert mirror.resource()["metadata"]["finalizers"]
    mirror.edit(deletionPolicy="Retain")
    eventually(lambda: "finalizers" not in mirror.resource()["metadata"], what="no finalizer")
    stays_at(mirror, 1)


# Failures


def test_failures_are_counted_and_end_at_the_limit(mirror: Mirror) -> None:
    mirror.create(restart={"backoffLimit": 2}).ready()
    mirror.behave(exit=3, message="no route to kafka")
    mirror.wait("Stalled", within=180)
    driver = mirror.status()["driver"]
    assert driver["consecutiveFailures"] >= 2
    assert "no route to kafka" in driver["lastFailure"]["message"]
    assert mirror.status()["phase"] == "Failed"
    done = len(mirror.starts())
    stays_at(mirror, done)
    mirror.behave()
    mirror.edit(restartToken="fixed")
    mirror.ready()


def test_a_failed_driver_comes_back_by_itself(mirror: Mirror) -> None:
    mirror.create().ready()
    mirror.behave(exit=1, message="a hiccup")
    eventually(lambda: len(mirror.starts()) >= 2, what="another start")
    mirror.behave()
    mirror.ready(within=120)
    driver = mirror.status()["driver"]
    assert driver["restarts"] >= 1
    assert "a hiccup" in driver["lastFailure"]["message"]


def test_health_forgives_failures(mirror: Mirror) -> None:
    mirror.create(restart={"backoffLimit": 5, "resetAfter": "20s"}).ready()
    mirror.behave(exit=1)
    eventually(lambda: mirror.status()["driver"].get("consecutiveFailures"), what="a failure that counts")
    mirror.behave()
    mirror.ready(within=120)
    eventually(
        lambda: not mirror.status()["driver"].get("consecutiveFailures"), within=90, what="failures forgiven"
    )


def test_a_missing_secret_is_named_and_recovers_by_itself(mirror: Mirror) -> None:
    security = {"protocol": "SSL", "secret": "kafka-auth"}
    mirror.create(source={"kafka": {"security": security}})
    eventually(lambda: "kafka-auth" in mirror.condition("Ready").get("message", ""), what="the Secret's name")
    mirror.kube.kubectl("create", "secret", "generic", "kafka-auth", "--from-literal=password=s3cr3t")
    mirror.ready(within=180)  # the kubelet tries a mount again after up to two minutes
    everything = mirror.kube.kubectl("get", "cdc,configmap,events,pod", "-o", "yaml")
    assert "s3cr3t" not in everything


def test_a_changed_secret_restarts_once(mirror: Mirror) -> None:
    security = {"protocol": "SSL", "secret": "kafka-auth"}
    mirror.kube.kubectl("create", "secret", "generic", "kafka-auth", "--from-literal=password=s3cr3t")
    mirror.create(source={"kafka": {"security": security}}).ready()
    mirror.kube.merge("secret", "kafka-auth", {"stringData": {"password": "new"}})
    # The kubelet renews mounted files after a minute or so.
    eventually(lambda: len(mirror.starts()) == 2, within=180, what="another start")
    mirror.ready()
    never(lambda: len(mirror.starts()) > 2, during=30, what="a third start")
    assert not mirror.status()["driver"].get("consecutiveFailures")


@pytest.mark.parametrize("kind", ["configmap", "secret"])
def test_what_the_pod_template_refers_to_restarts_once_when_it_changes(mirror: Mirror, kind: str) -> None:
    mirror.kube.kubectl("create", *(kind, "generic")[: 1 + (kind == "secret")], "more", "--from-literal=A=1")
    refers = {"configMapRef" if kind == "configmap" else "secretRef": {"name": "more"}}
    container = SMALL["spec"]["containers"][0] | {"envFrom": [refers]}
    mirror.create(spark={"podTemplate": {"spec": {"containers": [container]}}}).ready()
    change = {"data": {"A": "2"}} if kind == "configmap" else {"stringData": {"A": "2"}}
    mirror.kube.merge(kind, "more", change)
    # The kubelet renews mounted files after a minute or so.
    eventually(lambda: len(mirror.starts()) == 2, within=180, what="another start")
    mirror.ready()
    shown = mirror.kube.kubectl("exec", f"{mirror.name}-driver-0", "--", "printenv", "A")
    assert shown.strip() == "2"
    never(lambda: len(mirror.starts()) > 2, during=30, what="a third start")


def test_a_driver_without_progress_is_not_ready_and_an_idle_one_is(mirror: Mirror) -> None:
    mirror.create(progressDeadline="15s").ready()
    never(lambda: mirror.condition("Ready")["status"] != "True", during=30, what="an idle driver not ready")
    mirror.behave(lag=100)
    # Before, it is DriverStarting: a run that has lag and no batch yet.
    stuck = mirror.wait("Ready", "False", reason="NoProgress", within=60)
    assert "no batch was committed" in stuck["message"]
    mirror.behave(lag=100, commits=True)
    mirror.ready()
    assert len(mirror.starts()) == 1


def test_a_killed_driver_comes_back_with_the_same_spec(mirror: Mirror) -> None:
    mirror.create().ready()
    mirror.kube.kubectl("delete", "pod", f"{mirror.name}-driver-0", "--force", "--grace-period=0")
    eventually(lambda: len(mirror.starts()) == 2, what="another start")
    mirror.ready()
    assert mirror.starts()[0] == mirror.starts()[1]


# Neighbours


@pytest.mark.timeout(600)
def test_a_lost_node_is_named_and_its_driver_moves_when_forced(mirror: Mirror) -> None:
    with silent_node(mirror.kube) as node:
        mirror.create(spark={"podTemplate": merged(SMALL, {"spec": node.where()})})
        [pod] = eventually(
            lambda: [pod for pod in mirror.drivers() if pod["spec"].get("nodeName")], what="a driver's pod"
        )
        node.run(pod)
        silent = mirror.wait("Ready", "Unknown", reason="NodeLost", within=120)
        assert node.name in silent["message"]
        lost = mirror.wait("Ready", "False", reason="NodeLost", within=150)
        assert node.name in lost["message"]
        assert f"kubectl delete pod {pod['metadata']['name']} --force" in lost["message"]
        assert mirror.uid() == pod["metadata"]["uid"], "nothing else is started meanwhile"
        mirror.edit(spark={"podTemplate": {"spec": {"nodeSelector": None, "tolerations": None}}})
        mirror.kube.kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0")
        mirror.ready()
        assert mirror.uid() != pod["metadata"]["uid"]


def test_a_foreign_object_with_our_name_is_left_alone(mirror: Mirror) -> None:
    foreign = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"{mirror.name}-driver"}}
    mirror.kube.apply({**foreign, "spec": {"ports": [{"port": 80}], "selector": {"app": "theirs"}}})
    mirror.create()
    stalled = mirror.wait("Stalled")
    assert f"{mirror.name}-driver" in stalled["message"]
    service = mirror.kube.get("service", f"{mirror.name}-driver")
    assert service is not None
    assert service["spec"]["selector"] == {"app": "theirs"}
    assert "ownerReferences" not in service["metadata"]
    mirror.kube.delete("service", f"{mirror.name}-driver")
    mirror.ready(within=120)


@pytest.mark.parametrize("shared", ["target", "checkpoint"])
def test_of_two_pipelines_on_one_place_the_younger_waits(kube: Kube, shared: str) -> None:
    older = Mirror(kube, "older").create().ready()
    time.sleep(1.1)  # ages are whole seconds
    value = older.manifest()["spec"][shared]
    younger = Mirror(kube, "younger").create(**{shared: value})
    assert "older" in younger.wait("Stalled")["message"]
    assert not younger.drivers()
    older.ready()
    older.delete()
    younger.ready(within=120)


def test_the_api_server_refuses_what_the_schema_can_tell(mirror: Mirror) -> None:
    wrong = mirror.manifest(schemaEvolution="maybe")
    with pytest.raises(KubectlFailed, match="schemaEvolution"):
        mirror.kube.apply(wrong)


# Other shapes


def test_a_run_once_pipeline_completes(mirror: Mirror) -> None:
    mirror.behave(exit=0)
    mirror.kube.apply(mirror.manifest(trigger={"availableNow": True}))
    mirror.wait("Ready", reason="Completed")
    assert mirror.status()["phase"] == "Completed"
    assert [line["what"] for line in mirror.journal()] == ["start", "exit 0"]
    stays_at(mirror, 1)


def test_a_scheduled_pipeline_is_a_cron_job(mirror: Mirror) -> None:
    mirror.behave(exit=0)
    mirror.kube.apply(mirror.manifest(trigger={"availableNow": True, "schedule": "* * * * *"}))
    eventually(lambda: mirror.kube.list("cronjob"), what="a CronJob")
    eventually(lambda: len(mirror.starts()) == 1, within=90, what="a run at the full minute")
    mirror.edit(suspend=True)
    eventually(lambda: mirror.kube.list("cronjob")[0]["spec"]["suspend"], what="the CronJob suspended")


# The API server


def test_nothing_restarts_while_the_api_server_is_away(mirror: Mirror) -> None:
    on_node = os.environ.get("LAKEMIRROR_ON_NODE")
    if not on_node:
        pytest.skip("LAKEMIRROR_ON_NODE does not say how to run a command on the node")
    mirror.create().ready()
    before = mirror.uid()
    pause = "kill -STOP $(pidof kube-apiserver); sleep 60; kill -CONT $(pidof kube-apiserver)"
    subprocess.run([*shlex.split(on_node), pause], check=True, timeout=120)
    eventually(lambda: answers(mirror), within=60, what="the API server back")
    never(lambda: mirror.uid() != before, during=60, every=5, what="another driver")
    assert [line["what"] for line in mirror.journal()] == ["start"]
    mirror.ready()


def answers(mirror: Mirror) -> bool:
    try:
        return bool(mirror.resource())
    except (KubectlFailed, subprocess.TimeoutExpired):
        return False
