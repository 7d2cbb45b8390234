"""The kustomize base is the chart with its default values."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BASE = ROOT / "kustomize" / "base"


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not on the PATH")
def test_the_base_is_up_to_date(tmp_path: Path) -> None:
    for part in ("charts", "scripts", "kustomize"):
        shutil.copytree(ROOT / part, tmp_path / part)
    subprocess.run([tmp_path / "scripts" / "kustomize"], check=True)
    made = (tmp_path / "kustomize/base/operator.yaml").read_text()
    assert (BASE / "operator.yaml").read_text() == made, "stale: run scripts/kustomize"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on the PATH")
def test_it_builds_with_the_crd_and_in_one_namespace() -> None:
    done = subprocess.run(["kubectl", "kustomize", BASE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    objects: list[dict[str, Any]] = list(yaml.safe_load_all(done.stdout))
    by_kind = {o["kind"]: o for o in objects}
    assert by_kind["CustomResourceDefinition"]["metadata"]["name"] == "cdcpipelines.lakemirror.io"
    assert by_kind["Namespace"]["metadata"]["name"] == "lakemirror"
    assert {o["metadata"]["namespace"] for o in objects if "namespace" in o["metadata"]} == {"lakemirror"}
    bound = {s["namespace"] for o in objects if o["kind"].endswith("RoleBinding") for s in o["subjects"]}
    assert bound == {"lakemirror"}
    assert "Helm" not in done.stdout
