"""Adds Spark's settings on Kubernetes to the manifest. Pure, except for the files that it reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lakemirror.api import CdcPipeline

CONFIG = Path("/etc/lakemirror")
"""Where the operator's ConfigMap is mounted: pipeline.yaml and, if native, spark.json and executor.yaml."""
SECRETS = Path("/etc/lakemirror-secrets")
"""Where the Secrets that the manifest names are mounted, each in a folder with its name."""
AUTHENTICATION = Path("/etc/lakemirror-authentication")
"""Where the Secret is mounted by which the driver and its executors recognize each other."""
WATCHED = Path("/etc/lakemirror-watched")
"""Where the ConfigMaps and Secrets that the pod template refers to are mounted, each in a folder."""


@dataclass(frozen=True)
class Pod:
    """What the pod's environment variables say."""

    name: str
    ip: str
    namespace: str
    progress: str
    grace_seconds: float
    uid: str | None = None
    revision: str | None = None
    """Templates of earlier versions do not tell the last two."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Pod:
        """Read environment variables. Raises KeyError, which names the variable, if one is missing."""
        return cls(
            name=environment["POD_NAME"],
            ip=environment["POD_IP"],
            namespace=environment["POD_NAMESPACE"],
            progress=environment["LAKEMIRROR_PROGRESS_CONFIGMAP"],
            grace_seconds=float(environment["LAKEMIRROR_GRACE_SECONDS"]),
            uid=environment.get("POD_UID"),
            revision=environment.get("LAKEMIRROR_REVISION"),
        )


def pipeline(pod: Pod, config: Path = CONFIG) -> CdcPipeline:
    """Return the manifest, with ``spark.conf`` completed by what the operator and this pod know.

    Without spark.json, another operator has submitted the driver and has set all of that.
    """
    manifest = CdcPipeline.load(config / "pipeline.yaml")
    file = config / "spark.json"
    if not file.exists():
        return manifest
    conf = json.loads(file.read_text("utf-8"))
    if conf.get("spark.master", "").startswith("k8s://"):
        # Executors belong to this pod, and are deleted with it.
        own = {"spark.kubernetes.driver.pod.name": pod.name, "spark.driver.bindAddress": bracketed(pod.ip)}
        conf = own | conf
    spark = manifest.spec.spark.model_copy(update={"conf": conf})
    return manifest.model_copy(update={"spec": manifest.spec.model_copy(update={"spark": spark})})


def alone(manifest: CdcPipeline) -> CdcPipeline:
    """Return the manifest for a task without executors, leaving out settings for them and their network."""
    left_out = ("spark.kubernetes.", "spark.driver.", "spark.dynamicAllocation.", "spark.submit.")
    kept = {k: v for k, v in manifest.spec.spark.conf.items() if not k.startswith(left_out)}
    spark = manifest.spec.spark.model_copy(update={"conf": kept | {"spark.master": "local[1]"}})
    return manifest.model_copy(update={"spec": manifest.spec.model_copy(update={"spark": spark})})


def bracketed(ip: str) -> str:
    """Return an address as Spark expects it: IPv6 in brackets."""
    return f"[{ip}]" if ":" in ip else ip


def secret_folders(manifest: CdcPipeline, secrets: Path = SECRETS) -> dict[str, Path]:
    """Return the folder of each Secret that the manifest names."""
    return {name: secrets / name for name in manifest.spec.secrets().values()}


def watched_folders(watched: Path = WATCHED) -> list[Path]:
    """Return the folders of the ConfigMaps and Secrets that the pod template refers to."""
    return sorted(watched.iterdir()) if watched.is_dir() else []
