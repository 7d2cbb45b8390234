"""What the pod makes of the operator's files and of its environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakemirror.api import CdcPipeline
from lakemirror.controller import build
from lakemirror.controller.build import Application
from lakemirror.pod.settings import Pod, alone, pipeline, secret_folders, watched_folders
from tests.controller.builders import revision, spec

POD = Pod("shop-driver-0", "10.0.0.7", "mirrors", "shop-progress", 90.0)


def mounted(tmp_path: Path, settings: str = "spark", **changes: object) -> Path:
    """The config folder, as the operator's ConfigMap and its volume make it."""
    of = spec(**changes)
    data = build.config_data(Application("mirrors", "shop", of, revision(of), "driver:1"))
    for key, text in data.items():
        names = {
            ".yaml": "pipeline.yaml",
            f"-{settings}.json": "spark.json",
            "-executor.yaml": "executor.yaml",
        }
        file = names.get(key.removeprefix(revision(of)))
        if file is not None:
            (tmp_path / file).write_text(text)
    return tmp_path


def conf(manifest: CdcPipeline) -> dict[str, str]:
    return manifest.spec.spark.conf


def test_a_driver_with_executors_owns_them(tmp_path: Path) -> None:
    found = conf(pipeline(POD, mounted(tmp_path)))
    assert found["spark.master"] == "k8s://https://kubernetes.default.svc"
    assert found["spark.driver.host"] == "shop-driver.mirrors.svc"
    assert found["spark.driver.bindAddress"] == "10.0.0.7"
    assert found["spark.kubernetes.driver.pod.name"] == "shop-driver-0"


def test_without_executors_spark_is_local(tmp_path: Path) -> None:
    found = conf(pipeline(POD, mounted(tmp_path, spark={"executors": {"max": 0}, "driver": {"cores": 3}})))
    assert found["spark.master"] == "local[3]"
    assert not [key for key in found if key.startswith("spark.kubernetes.")]


def test_what_the_manifest_sets_wins(tmp_path: Path) -> None:
    given = {"spark.driver.bindAddress": "0.0.0.0", "spark.driver.port": "1"}
    found = conf(pipeline(POD, mounted(tmp_path, spark={"conf": given})))
    assert found.items() >= given.items()


def test_another_operator_has_set_everything(tmp_path: Path) -> None:
    folder = mounted(tmp_path, spark={"backend": "apache", "conf": {"spark.a": "b"}})
    assert conf(pipeline(POD, folder)) == {"spark.a": "b"}


def test_a_task_alone_needs_no_executors(tmp_path: Path) -> None:
    manifest = alone(pipeline(POD, mounted(tmp_path, spark={"conf": {"spark.hadoop.fs.s3a.endpoint": "x"}})))
    assert conf(manifest)["spark.master"] == "local[1]"
    assert conf(manifest)["spark.hadoop.fs.s3a.endpoint"] == "x"
    assert not [key for key in conf(manifest) if key.startswith(("spark.kubernetes.", "spark.driver."))]


def test_secrets_are_where_the_pod_mounts_them() -> None:
    security = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "secret": "kafka-auth"}
    of = spec(source={"kafka": {"security": security}})
    pod = build.driver_pod(Application("mirrors", "shop", of, revision(of), "driver:1"))
    mounts = {mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    document = {"metadata": {"name": "shop"}, "apiVersion": "lakemirror.io/v1alpha1", "kind": "CdcPipeline"}
    manifest = CdcPipeline.from_dict({**document, "spec": of.model_dump(by_alias=True, exclude_unset=True)})
    assert {str(folder) for folder in secret_folders(manifest).values()} <= mounts


def test_the_environment_of_the_template_is_all_that_is_needed() -> None:
    of = spec()
    pod = build.driver_pod(Application("mirrors", "shop", of, revision(of), "driver:1"))
    environment = {entry["name"]: entry.get("value", "x") for entry in pod["spec"]["containers"][0]["env"]}
    assert Pod.of(environment).progress == "shop-progress"
    assert 0 < Pod.of(environment).grace_seconds < pod["spec"]["terminationGracePeriodSeconds"]
    with pytest.raises(KeyError, match="POD_NAME"):
        Pod.of({})


def test_a_report_fits_a_config_map_with_a_thousand_tables() -> None:
    from lakemirror.api.report import Report

    tables = [
        {"source": f"t{i}", "error": "x" * 10_000, "drift": [{"column": "c"}] * 500} for i in range(1000)
    ]
    whole = Report.read({"tablesTotal": 1000, "failure": "y" * 10_000, "tables": tables})
    assert whole is not None
    short = whole.shortened().document()
    assert len(json.dumps(short)) < 200_000
    assert short["tablesTotal"] == 1000


def test_what_is_watched_may_be_nothing(tmp_path: Path) -> None:
    assert watched_folders(tmp_path / "none") == []
    (tmp_path / "secret-s3").mkdir()
    assert watched_folders(tmp_path) == [tmp_path / "secret-s3"]
