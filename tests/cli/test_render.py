"""`lakemirror render`: what it prints is what the operator applies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from lakemirror.cli.main import main
from tests.api.manifests import SMALL, changed


def render(tmp_path: Path, document: dict[str, Any], *arguments: str) -> Result:
    file = tmp_path / "pipeline.yaml"
    file.write_text(yaml.safe_dump(document), "utf-8")
    return CliRunner().invoke(main, ["render", "-f", str(file), *arguments], catch_exceptions=False)


def objects(result: Result) -> dict[str, dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    found = list(yaml.safe_load_all(result.stdout))
    return {f"{document['kind']}/{document['metadata']['name']}": document for document in found}


def test_the_objects_of_a_stream(tmp_path: Path) -> None:
    made = objects(render(tmp_path, SMALL, "-n", "mirrors", "--driver-image", "d:1"))
    assert list(made) == [
        "ServiceAccount/inventory-driver",
        "Role/inventory-driver",
        "RoleBinding/inventory-driver",
        "NetworkPolicy/inventory-driver",
        "NetworkPolicy/inventory-executors",
        "Secret/inventory-rpc-0",
        "ConfigMap/inventory-config",
        "ConfigMap/inventory-progress",
        "Service/inventory-driver",
        "StatefulSet/inventory-driver",
    ]
    assert all(document["metadata"]["namespace"] == "mirrors" for document in made.values())
    assert all("ownerReferences" not in document["metadata"] for document in made.values())
    pod = made["StatefulSet/inventory-driver"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "d:1"
    assert "data" not in made["Secret/inventory-rpc-0"], "the operator makes it up"


@pytest.mark.parametrize(
    ("backend", "version"), [("kubeflow", "sparkoperator.k8s.io/v1beta2"), ("apache", "spark.apache.org/v1")]
)
def test_the_back_end_can_be_chosen(tmp_path: Path, backend: str, version: str) -> None:
    made = objects(render(tmp_path, SMALL, "--backend", backend))
    assert made["SparkApplication/inventory"]["apiVersion"] == version
    assert "StatefulSet/inventory-driver" not in made


def test_a_schedule_is_a_cron_job_and_a_run_a_job(tmp_path: Path) -> None:
    scheduled = changed(trigger={"availableNow": True, "schedule": "@daily"})
    assert "CronJob/inventory-driver" in objects(render(tmp_path, scheduled))
    made = objects(render(tmp_path, changed(trigger={"availableNow": True})))
    assert any(name.startswith("Job/inventory-run-") for name in made)


def test_suspended_is_rendered_so(tmp_path: Path) -> None:
    made = objects(render(tmp_path, SMALL, "--set", "suspend=true"))
    assert made["StatefulSet/inventory-driver"]["spec"]["replicas"] == 0


def test_what_a_back_end_cannot_do_is_refused(tmp_path: Path) -> None:
    scheduled = changed(trigger={"availableNow": True, "schedule": "@daily"})
    result = render(tmp_path, scheduled, "--backend", "apache")
    assert result.exit_code == 2
    assert "spec.trigger.schedule" in result.stderr


def test_what_is_not_supported_is_refused_like_by_validate(tmp_path: Path) -> None:
    result = render(
        tmp_path, changed(maintenance={}, tables=[{"source": "a", "mode": "append", "onConflict": "fail"}])
    )
    assert (result.exit_code, result.stdout) == (2, "")
    assert "spec.maintenance: has no effect" in result.stderr
    assert "spec.tables[a].onConflict: has no effect with mode append" in result.stderr


def test_texts_of_several_lines_stay_readable(tmp_path: Path) -> None:
    assert "    apiVersion: lakemirror.io/v1alpha1\n    kind: CdcPipeline\n" in render(tmp_path, SMALL).stdout
