"""What schedulers and queues look at, in each back end: on the driver's pod and on the executors'."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakemirror.api import CdcPipeline
from lakemirror.controller import build, podtemplate
from lakemirror.controller.build import Application
from tests.controller.builders import observed, planned, revision, spec
from tests.controller.test_build import app, templates
from tests.support.crds import kind_of, wrong_in

pytestmark = pytest.mark.guarantee("In each back end, the pods carry what schedulers and queues look at")

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/scheduling"
SCHEMAS = json.loads((ROOT / "tests/fixtures/queues/schemas.json").read_text())
BACKENDS = ("native", "kubeflow", "apache")

Template = dict[str, Any]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def example(name: str, backend: str) -> Application:
    """An example as a pipeline of that back end."""
    document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    document["metadata"]["name"] = "shop"
    document["spec"]["spark"]["backend"] = backend
    of = CdcPipeline.from_dict(document).spec
    assert podtemplate.wrong_in(of.spark) is None
    return Application("mirrors", "shop", of, revision(of), "driver:1", uid="uid-1")


def labels(template: Template) -> dict[str, str]:
    found: dict[str, str] = template["metadata"]["labels"]
    return found


def annotations(template: Template) -> dict[str, str]:
    found: dict[str, str] = template["metadata"].get("annotations", {})
    return found


def test_yunikorn(backend: str) -> None:
    """One application id, one application: apache/yunikorn-k8shim, ``GetApplicationIDFromPod``."""
    for pod in templates(example("yunikorn", backend)):
        assert pod["spec"]["schedulerName"] == "yunikorn"
        assert labels(pod)["yunikorn.apache.org/app-id"] == "inventory"
        assert labels(pod)["yunikorn.apache.org/queue"] == "root.mirrors"


def test_volcano(backend: str) -> None:
    """The queue is an annotation: volcano-sh/volcano, ``buildPodGroupFromPod``."""
    driver, executor = templates(example("volcano", backend))
    for pod in (driver, executor):
        assert pod["spec"]["schedulerName"] == "volcano"
        assert annotations(pod)["scheduling.volcano.sh/queue-name"] == "mirrors"
    assert driver["spec"]["priorityClassName"] == "mirror-driver"
    assert "priorityClassName" not in executor["spec"]
    assert annotations(executor)["volcano.sh/preemptable"] == "true"
    assert "volcano.sh/preemptable" not in annotations(driver)


def test_kueue(backend: str) -> None:
    """Executors belong to the driver, so they have to ask: kubernetes-sigs/kueue, ``PodWebhook.Default``."""
    driver, executor = templates(example("kueue", backend))
    for pod in (driver, executor):
        assert labels(pod)["kueue.x-k8s.io/queue-name"] == "mirrors"
        assert "schedulerName" not in pod["spec"]
    assert "kueue.x-k8s.io/pod-suspending-parent" in annotations(executor)
    assert labels(executor)["kueue.x-k8s.io/managed"] == "true"
    assert "kueue.x-k8s.io/pod-suspending-parent" not in annotations(driver)
    workload = build.workload(example("kueue", backend))
    assert "kueue.x-k8s.io/queue-name" not in workload["metadata"]["labels"], "each pod by itself"


def test_spot(backend: str) -> None:
    of = example("spot", backend)
    driver, executor = (pod["spec"] for pod in templates(of))
    assert driver["nodeSelector"].items() >= {"node.example.org/capacity": "on-demand"}.items()
    assert not {"tolerations", "topologySpreadConstraints"} & driver.keys()
    assert executor["nodeSelector"].items() >= {"node.example.org/capacity": "spot"}.items()
    assert [t["key"] for t in executor["tolerations"]] == ["node.example.org/spot"]
    [spread] = executor["topologySpreadConstraints"]
    selected = spread["labelSelector"]["matchLabels"] | {"lakemirror.io/pipeline": "shop"}
    assert selected.items() <= labels(list(templates(of))[1]).items(), "it selects the executors"


def objects() -> Iterator[Any]:
    for path in sorted((EXAMPLES / "queues").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            yield pytest.param(document, id=f"{path.stem} {document['kind']}")


@pytest.mark.parametrize("document", list(objects()))
def test_queues_are_what_their_projects_publish(document: Template) -> None:
    kind = kind_of(document)
    if kind in ("v1 ConfigMap", "scheduling.k8s.io/v1 PriorityClass"):
        return
    assert wrong_in(document, SCHEMAS[kind]) == []


def test_the_queue_of_an_example_is_there() -> None:
    def queues(name: str) -> list[Template]:
        return list(yaml.safe_load_all((EXAMPLES / "queues" / f"{name}.yaml").read_text()))

    [config] = queues("yunikorn")
    [partition] = yaml.safe_load(config["data"]["queues.yaml"])["partitions"]
    assert [q["name"] for q in partition["queues"][0]["queues"]] == ["mirrors"]
    assert [q["metadata"]["name"] for q in queues("volcano")] == ["mirrors"]
    assert [q["metadata"]["name"] for q in queues("priority")] == ["mirror-driver"]
    assert [q["metadata"]["name"] for q in queues("kueue") if q["kind"] == "LocalQueue"] == ["mirrors"]


class TestTemplates:
    BOTH = {"spec": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "a"}]}}  # noqa: RUF012

    def test_that_of_a_role_is_laid_over_that_of_both(self, backend: str) -> None:
        own = {"spec": {"nodeSelector": {"zone": "b"}, "tolerations": None}}
        of = app(spark={"backend": backend, "podTemplate": self.BOTH, "executors": {"podTemplate": own}})
        driver, executor = (pod["spec"] for pod in templates(of))
        assert driver["nodeSelector"] == {"disk": "ssd", "kubernetes.io/os": "linux"}
        assert driver["tolerations"] == [{"key": "a"}]
        assert executor["nodeSelector"] == {"disk": "ssd", "zone": "b", "kubernetes.io/os": "linux"}
        assert "tolerations" not in executor

    def test_labels_by_which_the_operator_finds_its_pods_stay(self, backend: str) -> None:
        own = {"metadata": {"labels": {"app.kubernetes.io/component": "mine", "team": "data"}}}
        of = app(spark={"backend": backend, "driver": {"podTemplate": own}})
        driver, executor = templates(of)
        assert labels(driver)["app.kubernetes.io/component"] == "driver"
        assert labels(driver)["team"] == "data"
        assert "team" not in labels(executor)

    def test_secrets_of_a_role_are_watched(self) -> None:
        own = {"spec": {"containers": [{"name": "executor", "envFrom": [{"secretRef": {"name": "keys"}}]}]}}
        driver, _ = templates(app(spark={"executors": {"podTemplate": own}}))
        assert {"secretName": "keys"} in [volume.get("secret") for volume in driver["spec"]["volumes"]]

    @pytest.mark.parametrize(
        ("spark", "said"),
        [
            (
                {"driver": {"podTemplate": {"spec": {"containers": "none"}}}},
                "spec.spark.driver.podTemplate.spec.containers: must be a list",
            ),
            (
                {"executors": {"podTemplate": {"metadata": {"labels": {"a": 1}}}}},
                "spec.spark.executors.podTemplate.metadata.labels.a: must be text",
            ),
            (
                {"executors": {"podTemplate": {"spec": {"containers": [{"name": "driver"}]}}}},
                "spec.spark.executors.podTemplate.spec.containers[driver]: "
                "belongs into spec.spark.driver.podTemplate",
            ),
            (
                {"driver": {"podTemplate": {"spec": {"containers": [{"name": "executor"}]}}}},
                "spec.spark.driver.podTemplate.spec.containers[executor]: "
                "belongs into spec.spark.executors.podTemplate",
            ),
        ],
    )
    def test_what_is_none_is_refused_by_its_path(self, spark: dict[str, Any], said: str) -> None:
        stalled = planned(spec(spark=spark), observed()).status.condition("Stalled")
        assert stalled is not None
        assert stalled.reason == "InvalidSpec"
        assert stalled.message.startswith(said)

    def test_words_of_the_api_server_name_the_template_that_they_are_about(self) -> None:
        words = "spec.template.spec.tolerations[0].operator: Invalid value"
        tolerations = {"spec": {"tolerations": []}}
        assert podtemplate.in_spec(words, self.BOTH, tolerations).startswith(
            "spec.spark.driver.podTemplate.spec.tolerations[0]"
        )
        assert podtemplate.in_spec(words, self.BOTH, {"spec": {}}).startswith(
            "spec.spark.podTemplate.spec.tolerations[0]"
        )
