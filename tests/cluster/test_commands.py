"""What a person types: lakemirror render and status, helm test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from lakemirror.cli.main import main
from tests.cluster.kube import eventually
from tests.cluster.mirror import Mirror
from tests.cluster.operator import RELEASE, Operator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

KINDS = "statefulset,service,serviceaccount,role,rolebinding,networkpolicy"


def lakemirror(mirror: Mirror, *arguments: str) -> Result:
    return CliRunner(env={"KUBECONFIG": str(mirror.kube.kubeconfig)}).invoke(main, arguments)


def render(mirror: Mirror, folder: Path, *options: str) -> str:
    """What the command prints, which the API server has found valid."""
    manifest = folder / "pipeline.yaml"
    manifest.write_text(yaml.safe_dump(mirror.manifest()))
    rendered = lakemirror(mirror, "render", "-f", str(manifest), "-n", mirror.kube.namespace, *options)
    assert rendered.exit_code == 0, rendered.output
    mirror.kube.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=rendered.stdout)
    return rendered.stdout


def test_render_prints_what_the_operator_applies(mirror: Mirror, tmp_path: Path) -> None:
    rendered = yaml.safe_load_all(render(mirror, tmp_path))
    printed = {(each["kind"], each["metadata"]["name"]) for each in rendered}
    mirror.create().ready()
    there = {
        (each["kind"], each["metadata"]["name"])
        for each in mirror.kube.list(KINDS, f"lakemirror.io/pipeline={mirror.name}")
    }
    assert there
    assert there == {each for each in printed if each[0] not in ("ConfigMap", "Secret")}


def test_status_shows_a_pipeline_live(mirror: Mirror) -> None:
    mirror.create().ready()
    mirror.behave(commits=True, tables=3)
    eventually(lambda: mirror.status().get("tables"), what="tables in the status")
    shown = lakemirror(mirror, "status", mirror.name, "-n", mirror.kube.namespace)
    assert shown.exit_code == 0, shown.output
    assert "Ready" in shown.output
    assert "public.table_0000" in shown.output
    missing = lakemirror(mirror, "status", "nobody", "-n", mirror.kube.namespace)
    assert missing.exit_code == 1
    assert "not found" in missing.output


def test_helm_test_passes(operator: Operator) -> None:
    operator.kube.run("helm", "test", RELEASE, "--timeout", "180s", timeout=240)


@pytest.mark.parametrize("backend", ["kubeflow", "apache"])
def test_other_operators_crds_accept_what_render_prints(backend: str, mirror: Mirror, tmp_path: Path) -> None:
    """With the CRDs that controller/test_schemas describes, and the API server's strict validation."""
    folder = os.environ.get("LAKEMIRROR_SPARK_CRDS")
    if not folder:
        pytest.skip("LAKEMIRROR_SPARK_CRDS names no folder with the CRDs")
    crd = f"{folder}/{backend}.yaml"
    mirror.kube.kubectl("apply", "--server-side", "-f", crd)
    mirror.kube.kubectl("wait", "--for=condition=Established", "-f", crd)
    assert "kind: SparkApplication" in render(mirror, tmp_path, "--backend", backend)
