"""Each state of a pipeline, as Argo CD, Flux, kstatus and ``kubectl wait`` judge it."""

from __future__ import annotations

from typing import Any, ClassVar, get_args, get_type_hints

import pytest
import yaml

from lakemirror.api.status import ConditionType, Phase
from lakemirror.controller.values import Obstacle
from tests.controller.kstatus import kstatus, waits_for_ready
from tests.gitops import write
from tests.gitops.judges import ARGO, CUSTOMIZATION, FLUX, SCRIPT, argo, flux
from tests.gitops.states import STATES, State, new

pytestmark = pytest.mark.guarantee(
    "Argo CD, Flux, kstatus and `kubectl wait` judge every state correctly; no verdict of the operator is "
    "missing from these states"
)

EXPECTED_OF_FLUX = {
    "Healthy": "Current",
    "Suspended": "Current",
    "Progressing": "InProgress",
    "Degraded": "Failed",
}


def expressions(file: str) -> dict[str, str]:
    """The ``healthCheckExprs`` of a CdcPipeline in an example."""
    for document in yaml.safe_load_all((FLUX / file).read_text()):
        for check in document.get("spec", {}).get("healthCheckExprs", ()):
            if (check["apiVersion"], check["kind"]) == ("lakemirror.io/v1alpha1", "CdcPipeline"):
                return {name: text for name, text in check.items() if name not in ("apiVersion", "kind")}
    raise AssertionError(f"{file} has no healthCheckExprs of a CdcPipeline")


@pytest.fixture(params=STATES)
def state(request: pytest.FixtureRequest) -> State:
    return STATES[request.param]


def test_every_state_as_each_of_them_judges_it(state: State) -> None:
    body = state.resource()
    ready = next(c for c in body["status"]["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == state.reason
    assert kstatus(body) == state.kstatus
    assert waits_for_ready(body) is not state.ready
    assert argo(body).status == state.health
    if not state.deleting:
        for file in ("pipelines.yaml", "release.yaml"):
            assert flux(body, expressions(file)) == EXPECTED_OF_FLUX[state.health], file


def test_they_do_not_contradict_each_other(state: State) -> None:
    """Who is healthy for one is current for the other; what fails for kstatus is degraded."""
    allowed = {
        "Current": ("Healthy", "Suspended"),
        "Failed": ("Degraded",),
        "InProgress": ("Progressing", "Degraded"),
        "Terminating": ("Progressing",),
    }
    assert state.health in allowed[state.kstatus]
    assert state.kstatus != "Current" or state.ready


def test_every_condition_and_phase_is_among_the_states() -> None:
    bodies = [state.resource()["status"] for state in STATES.values()]
    assert {c["type"] for body in bodies for c in body["conditions"]} == set(get_args(ConditionType))
    assert {body["phase"] for body in bodies} == set(get_args(Phase))


@pytest.mark.parametrize("reason", get_args(get_type_hints(Obstacle)["reason"]))
def test_every_obstacle(reason: Any) -> None:
    body = State(new(obstacles=(Obstacle(reason, "x"),)), reason, "Degraded", "Failed").resource()
    assert (kstatus(body), argo(body).status) in (("Failed", "Degraded"), ("InProgress", "Progressing"))


class TestBeforeTheOperatorHasSeenIt:
    UNSEEN: ClassVar[dict[str, Any]] = {
        "metadata": {"name": "shop", "generation": 1},
        "spec": {},
        "status": {"observedGeneration": -1},
    }

    def test_it_is_in_progress(self) -> None:
        assert argo(self.UNSEEN).status == "Progressing"
        assert flux(self.UNSEEN, expressions("pipelines.yaml")) == "InProgress"
        assert argo({"metadata": {"generation": 1}}).status == "Progressing"

    @pytest.mark.parametrize("name", ["running", "invalid", "suspended"])
    def test_an_edit_that_it_has_not_seen_is_in_progress(self, name: str) -> None:
        body = STATES[name].resource()
        body["metadata"]["generation"] += 1
        assert argo(body) == ("Progressing", "Waiting for the operator to process generation 2")
        assert kstatus(body) == "InProgress"
        assert flux(body, expressions("pipelines.yaml")) == "InProgress"

    def test_conditions_that_have_not_come_yet(self) -> None:
        body = {"metadata": {"generation": 1}, "status": {"observedGeneration": 1}}
        assert argo(body).status == "Progressing"
        assert flux(body, expressions("pipelines.yaml")) == "InProgress"


class TestMessages:
    def test_what_a_person_has_to_do_is_told_by_its_reason(self) -> None:
        said = argo(STATES["edit-refused"].resource())
        assert said.message.startswith("ResetNeeded: spec.target")

    def test_findings_are_told_beside_a_healthy_pipeline(self) -> None:
        said = argo(STATES["with-findings"].resource())
        assert said.status == "Healthy"
        assert "TableFailed: shop.public.b: no such bucket" in said.message
        assert "DataQuality: 2 records" in said.message
        assert "SchemaDrift: shop.public.a.note added" in said.message


class TestFiles:
    """What Argo CD's own tests would run, and what goes into argocd-cm."""

    def test_they_are_those_of_the_operator(self) -> None:
        found = {path.name: path.read_text() for path in (CUSTOMIZATION / "testdata").iterdir()}
        found["health_test.yaml"] = (CUSTOMIZATION / "health_test.yaml").read_text()
        assert found == write.files(), "stale: run python -m tests.gitops.write"

    def test_they_pass(self) -> None:
        tests = yaml.safe_load((CUSTOMIZATION / "health_test.yaml").read_text())["tests"]
        assert len(tests) == len(STATES)
        for test in tests:
            body = yaml.safe_load((CUSTOMIZATION / test["inputPath"]).read_text())
            wanted = test["healthStatus"]
            assert argo(body) == (wanted["status"], wanted["message"]), test["inputPath"]

    def test_the_config_map_has_the_same_script(self) -> None:
        config = yaml.safe_load((ARGO / "argocd-cm.yaml").read_text())
        assert config["data"]["resource.customizations.health.lakemirror.io_CdcPipeline"] == SCRIPT
