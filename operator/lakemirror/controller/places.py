"""Refuses local paths at which a pod has no volume. Pure.

The root file system of the pods is read-only, and what is in ``/tmp`` is gone with the pod. A local path can
therefore only be one of a volume that the pod templates mount, in the driver and in each executor.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lakemirror.api import PipelineSpec
from lakemirror.api.errors import line, path_of
from lakemirror.api.object_stores import is_inside, one_spelling
from lakemirror.api.supported import places
from lakemirror.controller.podtemplate import Role, Template

_OURS = ("tmp", "config")
"""Volumes that each pod has."""
_HADOOP_SETTINGS = ("HADOOP_CONF_DIR", "SPARK_CONF_DIR")
_REMEDY = "use an object store, or mount a volume there in spec.spark.podTemplate"


def wrong(spec: PipelineSpec) -> list[str]:
    """Return what is wrong with local paths of a spec on a cluster, each with the path of its field."""
    document = {"spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True)}
    found = [(("spec", *at), _why(path, spec)) for at, path in places(spec) if path is not None]
    return [line(path_of(at, document), why) for at, why in found if why is not None]


def _why(path: str, spec: PipelineSpec) -> str | None:
    spelled = one_spelling(path)
    if "://" in spelled or (not path.lower().startswith("file:") and _has_another_default(spec)):
        return None
    if not spelled.startswith("/"):
        return f"{path} is a relative path, which on a cluster is on the pod's own disk: {_REMEDY}"
    folder = _fixed(spelled)
    if not _has_volume(folder, spec, "driver"):
        return f"{path} is on the pod's own disk, which is read-only, or lost with the pod: {_REMEDY}"
    if spec.spark.executors.max > 0 and not _has_volume(folder, spec, "executor"):
        return (
            f"{path} is on a volume of the driver alone, and executors work on it, too: mount the volume in "
            "the container executor of spec.spark.podTemplate as well, or set spec.spark.executors.max: 0"
        )
    return None


def _fixed(path: str) -> str:
    """Return the folder above everything that placeholders or a pattern stand for."""
    fixed = re.split(r"[{*?\[]", path, maxsplit=1)[0]
    return path if fixed == path else fixed.rpartition("/")[0] or "/"


def _has_another_default(spec: PipelineSpec) -> bool:
    """Return whether paths without a scheme may be on another file system than the local one."""
    default = spec.spark.conf.get("spark.hadoop.fs.defaultFS", "file:///")
    named = {name for container in _containers(spec, "driver") for name in _variables(container)}
    return not default.lower().startswith("file:") or not named.isdisjoint(_HADOOP_SETTINGS)


def _has_volume(folder: str, spec: PipelineSpec, role: Role) -> bool:
    mounts = (each for container in _containers(spec, role) for each in _list(container, "volumeMounts"))
    return any(
        isinstance(each.get("mountPath"), str)
        and each.get("name") not in _OURS
        and is_inside(folder, each["mountPath"])
        for each in mounts
    )


def _containers(spec: PipelineSpec, role: Role) -> Iterator[Template]:
    """Yield what the templates say of the container of a role."""
    own = spec.spark.driver.pod_template if role == "driver" else spec.spark.executors.pod_template
    for template in (spec.spark.pod_template, own):
        pod = (template or {}).get("spec")
        for container in _list(pod, "containers"):
            if container.get("name") == role:
                yield container


def _variables(container: Template) -> Iterator[str]:
    for each in _list(container, "env"):
        yield str(each.get("name"))


def _list(of: Any, name: str) -> list[Template]:
    """Return the mappings of a list in a template, which may be of any form."""
    found = of.get(name) if isinstance(of, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
