"""Merges the pod templates of ``spec.spark`` over the operator's own pods. Pure.

First comes the template for both roles, ``podTemplate``, then that of the role: ``driver.podTemplate`` or
``executors.podTemplate``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from lakemirror.api.spec import Spark

Template = dict[str, Any]
Role = Literal["driver", "executor"]

_KEYS = {"volumeMounts": "mountPath", "ports": "containerPort"}
"""What identifies the entries of a list. In other lists it is the name, as when Kubernetes merges pods."""


def laid_over(ours: Template, spark: Spark, role: Role) -> Template:
    """Return our pod of a role, overlaid with the spec's templates: for both roles, then for this one."""
    own = spark.driver.pod_template if role == "driver" else spark.executors.pod_template
    return overlay(overlay(ours, spark.pod_template, role), own, role)


def wrong_in(spark: Spark) -> str | None:
    """Return the first error that keeps a template from being merged, with its path below spark."""
    templates: tuple[tuple[str, Role | None, Template | None], ...] = (
        ("podTemplate", None, spark.pod_template),
        ("driver.podTemplate", "executor", spark.driver.pod_template),
        ("executors.podTemplate", "driver", spark.executors.pod_template),
    )
    for path, other, template in templates:
        found = wrong(template) or _of_the_other(template, other)
        if found is not None:
            return f"{path}.{found}"
    return None


def _of_the_other(template: Template | None, other: Role | None) -> str | None:
    """Return the error of a container of the other role, which would be left out silently."""
    containers = ((template or {}).get("spec") or {}).get("containers") or []
    if other is None or all(container["name"] != other for container in containers):
        return None
    place = "driver" if other == "driver" else "executors"
    return f"spec.containers[{other}]: belongs into spec.spark.{place}.podTemplate"


def overlay(ours: Template, theirs: Template | None, container: str) -> Template:
    """Merge ``theirs`` over ``ours``: maps by key, lists of named entries by name. A null removes a value.

    Of the containers called driver and executor, only ``container`` takes part. Our labels and annotations
    stay, because the operator finds its pods by them.
    """
    if not theirs:
        return ours
    other = {"driver", "executor"} - {container}
    spec = dict(theirs.get("spec") or {})
    if "containers" in spec:
        spec["containers"] = [c for c in spec["containers"] or [] if c.get("name") not in other]
    merged: Template = _merge(ours, {**theirs, "spec": spec}, "")
    return _merge(merged, {"metadata": ours.get("metadata", {})}, "")  # type: ignore[no-any-return]


def wrong(template: Template | None) -> str | None:
    """Return the first error that keeps ``template`` from being merged, with its path below podTemplate.

    Quantities are checked here because the API server refuses them without a path. It checks everything else
    itself, in a dry run of the resulting objects.
    """
    return next(_wrong(template or {}), None)


def _wrong(template: Template) -> Iterator[str]:
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    for part, value in (("metadata", metadata), ("spec", spec)):
        if not isinstance(value, dict):
            yield f"{part}: must be a mapping"
            return
    for name in ("labels", "annotations"):
        yield from _wrong_texts(f"metadata.{name}", metadata.get(name))
    yield from _wrong_texts("spec.nodeSelector", spec.get("nodeSelector"))
    for name in ("containers", "initContainers", "volumes"):
        items = spec.get(name) or []
        if not isinstance(items, list) or not all(_is_named([item], "") for item in items):
            yield f"spec.{name}: must be a list, each entry with a name"
        elif name != "volumes":
            for item in items:
                yield from _wrong_resources(f"spec.{name}[{item['name']}].resources", item.get("resources"))


def _wrong_texts(path: str, values: Any) -> Iterator[str]:
    if not isinstance(values or {}, dict):
        yield f"{path}: must be a mapping"
        return
    for key, value in (values or {}).items():
        if value is not None and not isinstance(value, str):
            yield f"{path}.{key}: must be text: write {str(value)!r} in quotes"


_QUANTITY = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?")
"""https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/"""


def _wrong_resources(path: str, resources: Any) -> Iterator[str]:
    if not isinstance(resources or {}, dict):
        yield f"{path}: must be a mapping"
        return
    for part in ("requests", "limits"):
        amounts = (resources or {}).get(part) or {}
        if not isinstance(amounts, dict):
            yield f"{path}.{part}: must be a mapping"
            continue
        for name, amount in amounts.items():
            text = str(amount) if isinstance(amount, str | int | float) else ""
            if amount is not None and _QUANTITY.fullmatch(text) is None:
                yield f"{path}.{part}.{name}: {amount!r} is not a quantity such as 500m or 2Gi"


_BELOW_WORKLOAD = re.compile(
    r"\.?\bspec\.(?:jobTemplate\.spec\.template|template|driver\.template|driverSpec\.podTemplateSpec)"
    r"\.((?:spec|metadata)\.(\w+))"
)


def in_spec(message: str, template: Template | None, of_driver: Template | None = None) -> str:
    """Return the API server's ``message`` about a workload, with paths as they are in the resource.

    Only what ``template`` or ``of_driver``, the driver's own template, sets gets a path there. The rest comes
    from other fields.
    """

    def path(found: re.Match[str]) -> str:
        for place, each in (("driver.podTemplate", of_driver), ("podTemplate", template)):
            part = (each or {}).get(found[1].split(".")[0])
            if isinstance(part, dict) and found[2] in part:
                return f"spec.spark.{place}.{found[1]}"
        return found[0].lstrip(".")

    return _BELOW_WORKLOAD.sub(path, message)


def _merge(below: Any, above: Any, name: str) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        both = {key: _merge(below.get(key), value, key) for key, value in above.items() if value is not None}
        return {key: value for key, value in below.items() if key not in above} | both
    if isinstance(below, list) and isinstance(above, list) and _is_named(below + above, name):
        return _by_name(below, above, _KEYS.get(name, "name"))
    return above


def _is_named(items: list[Any], name: str) -> bool:
    key = _KEYS.get(name, "name")
    return all(isinstance(item, dict) and isinstance(item.get(key), str | int) for item in items)


def _by_name(below: list[Any], above: list[Any], key: str) -> list[Any]:
    merged = {item[key]: item for item in below}
    for item in above:
        merged[item[key]] = _merge(merged.get(item[key]), item, "")
    return list(merged.values())
