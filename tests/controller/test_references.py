"""What a pod template refers to is found, and mounted for the driver to watch."""

from __future__ import annotations

from typing import Any

import pytest

from lakemirror.controller import build
from lakemirror.controller.build import Application
from lakemirror.controller.references import Reference, references
from tests.controller.builders import revision, spec


def template(name: str = "driver", volumes: Any = (), **container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": name, **container}], "volumes": list(volumes)}}


def key_of(kind: str, name: str, key: str, **more: Any) -> dict[str, Any]:
    return {"name": key.upper(), "valueFrom": {f"{kind}KeyRef": {"name": name, "key": key, **more}}}


def mounted(name: str, source: dict[str, Any]) -> dict[str, Any]:
    mounts = [{"name": name, "mountPath": f"/{name}"}]
    return template(volumeMounts=mounts, volumes=[{"name": name, **source}])


@pytest.mark.parametrize(
    ("of", "found"),
    [
        (None, []),
        (template(), []),
        (template(envFrom=[{"secretRef": {"name": "s3"}}]), [Reference("secret", "s3")]),
        (
            template("executor", envFrom=[{"configMapRef": {"name": "c", "optional": True}}]),
            [Reference("configMap", "c", optional=True)],
        ),
        (template("sidecar", envFrom=[{"secretRef": {"name": "s3"}}]), []),
        (
            template(env=[key_of("secret", "s3", "b"), key_of("secret", "s3", "a", optional=True)]),
            [Reference("secret", "s3", ("a", "b"))],
        ),
        (
            template(env=[key_of("configMap", "c", "a")], envFrom=[{"configMapRef": {"name": "c"}}]),
            [Reference("configMap", "c")],
        ),
        (mounted("conf", {"configMap": {"name": "spark"}}), [Reference("configMap", "spark")]),
        (
            mounted("keys", {"secret": {"secretName": "tls", "items": [{"key": "ca", "path": "x"}]}}),
            [Reference("secret", "tls", ("ca",))],
        ),
        (
            mounted(
                "all",
                {
                    "projected": {
                        "sources": [
                            {"secret": {"name": "tls"}},
                            {"configMap": {"name": "c"}},
                            {"serviceAccountToken": {"path": "token"}},
                        ]
                    }
                },
            ),
            [Reference("configMap", "c"), Reference("secret", "tls")],
        ),
        (template(volumes=[{"name": "unused", "secret": {"secretName": "tls"}}]), []),
        # What is no pod is for the API server to refuse.
        ({"spec": {"containers": [{"name": "driver", "env": {"a": "b"}, "envFrom": "all"}]}}, []),
        ({"spec": {"containers": ["driver"], "volumes": "none"}}, []),
        (template(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": 5, "key": None}}}]), []),
    ],
)
def test_what_a_template_refers_to(of: dict[str, Any] | None, found: list[Reference]) -> None:
    assert references(of) == found


def test_the_driver_has_it_mounted_to_watch_it() -> None:
    of = spec(
        spark={
            "podTemplate": template(
                env=[key_of("secret", "s3", "key")], envFrom=[{"configMapRef": {"name": "c"}}]
            )
        }
    )
    app = Application("mirrors", "shop", of, revision(of), "driver:1")
    pod = build.driver_pod(app)["spec"]
    volumes = {volume.pop("name"): volume for volume in pod["volumes"]}
    assert volumes["watched-0"] == {"configMap": {"name": "c"}}
    assert volumes["watched-1"] == {"secret": {"secretName": "s3", "items": [{"key": "key", "path": "key"}]}}
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["watched-0"] == "/etc/lakemirror-watched/configmap-c"
    assert mounts["watched-1"] == "/etc/lakemirror-watched/secret-s3"
    others = [build.driver_pod(app, task="cleanup"), build.executor_pod(app)]
    assert not [v for other in others for v in other["spec"]["volumes"] if v["name"].startswith("watched")]
