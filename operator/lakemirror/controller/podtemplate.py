"""How ``spec.spark.podTemplate`` is laid over the pod that the operator would make. Pure."""

from __future__ import annotations

from typing import Any

Template = dict[str, Any]

_KEYS = {"volumeMounts": "mountPath", "ports": "containerPort"}
"""What tells the entries of a list apart; elsewhere their name does, as where Kubernetes merges pods."""


def overlay(ours: Template, theirs: Template | None, container: str) -> Template:
    """``theirs`` over ``ours``: maps are merged, lists of named things by name; null takes away.

    Of the containers called driver and executor only ``container`` takes part; labels and annotations of ours
    stay, for the operator finds its pods by them.
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
    """What keeps ``template`` from being laid over anything, if so; the rest is the API server's to judge."""
    for part in ("metadata", "spec"):
        if not isinstance((template or {}).get(part) or {}, dict):
            return f"{part}: must be a mapping"
    return next(filter(None, (_wrong_list(template, name) for name in _LISTS)), None)


_LISTS = ("containers", "initContainers", "volumes")


def _wrong_list(template: Template | None, name: str) -> str | None:
    items = ((template or {}).get("spec") or {}).get(name) or []
    if isinstance(items, list) and all(isinstance(i, dict) and isinstance(i.get("name"), str) for i in items):
        return None
    return f"spec.{name}: must be a list, each entry with a name"


def _merge(below: Any, above: Any, name: str) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        both = {key: _merge(below.get(key), value, key) for key, value in above.items() if value is not None}
        return {key: value for key, value in below.items() if key not in above} | both
    if isinstance(below, list) and isinstance(above, list) and _is_named(below + above, name):
        return _by_name(below, above, _KEYS.get(name, "name"))
    return above


def _is_named(items: list[Any], name: str) -> bool:
    return all(isinstance(item, dict) and _KEYS.get(name, "name") in item for item in items)


def _by_name(below: list[Any], above: list[Any], key: str) -> list[Any]:
    merged = {item[key]: item for item in below}
    for item in above:
        merged[item[key]] = _merge(merged.get(item[key]), item, "")
    return list(merged.values())
