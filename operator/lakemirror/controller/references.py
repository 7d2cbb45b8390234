"""Finds the ConfigMaps and Secrets that a pod template makes containers depend on. Pure.

A container does not notice that one of them has changed: it reads environment variables, and mostly files,
too, only when it starts. So the driver's pod mounts each of them once more, for the driver to watch
(``lakemirror.pod``). The operator itself reads no Secrets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

_CONTAINERS = ("driver", "executor")
"""Containers that a restart of the driver replaces. Init containers and sidecars are not restarted."""


@dataclass(frozen=True)
class Reference:
    """A ConfigMap or a Secret, or some of its ``keys``. If ``optional``, it need not exist."""

    kind: Literal["configMap", "secret"]
    name: str
    keys: tuple[str, ...] | None = None
    optional: bool = False

    @property
    def volume(self) -> dict[str, Any]:
        """The source of a volume with its files."""
        source: dict[str, Any] = {"name" if self.kind == "configMap" else "secretName": self.name}
        if self.keys is not None:
            source["items"] = [{"key": key, "path": key} for key in self.keys]
        return {self.kind: source | ({"optional": True} if self.optional else {})}

    @property
    def folder(self) -> str:
        """The name of the folder in which it is mounted."""
        return f"{self.kind.lower()}-{self.name}"


def references(*templates: dict[str, Any] | None) -> list[Reference]:
    """Return each of them once, sorted by kind and name.

    Invalid parts of a pod are skipped, because the API server reports them.
    """
    found: dict[tuple[str, str], Reference] = {}
    for each in (e for template in templates for e in _all(_mapping((template or {}).get("spec")))):
        known = found.get((each.kind, each.name))
        found[each.kind, each.name] = each if known is None else _both(known, each)
    return [found[key] for key in sorted(found)]


def _both(one: Reference, other: Reference) -> Reference:
    whole = one.keys is None or other.keys is None
    keys = None if whole else tuple(sorted({*(one.keys or ()), *(other.keys or ())}))
    return Reference(one.kind, one.name, keys, one.optional and other.optional)


def _all(spec: dict[str, Any]) -> Iterator[Reference]:
    mounted: set[Any] = set()
    for container in _mappings(spec.get("containers")):
        if container.get("name") in _CONTAINERS:
            mounted |= {str(mount.get("name")) for mount in _mappings(container.get("volumeMounts"))}
            yield from _of_environment(container)
    for volume in _mappings(spec.get("volumes")):
        if str(volume.get("name")) in mounted:
            yield from _of_volume(volume)
            for source in _mappings(_mapping(volume.get("projected")).get("sources")):
                yield from _of_volume(source)


def _of_environment(container: dict[str, Any]) -> Iterator[Reference]:
    for source in _mappings(container.get("envFrom")):
        yield from _reference("configMap", _mapping(source.get("configMapRef")))
        yield from _reference("secret", _mapping(source.get("secretRef")))
    for variable in _mappings(container.get("env")):
        source = _mapping(variable.get("valueFrom"))
        for kind, at in (("configMap", "configMapKeyRef"), ("secret", "secretKeyRef")):
            one = _mapping(source.get(at))
            yield from _reference(kind, one, [one.get("key")])


def _of_volume(volume: dict[str, Any]) -> Iterator[Reference]:
    for kind in ("configMap", "secret"):
        source = _mapping(volume.get(kind))
        items = [item.get("key") for item in _mappings(source.get("items"))]
        yield from _reference(kind, source, items or None)


def _reference(kind: Any, source: dict[str, Any], keys: list[Any] | None = None) -> Iterator[Reference]:
    name = source.get("secretName") or source.get("name")
    if isinstance(name, str) and all(isinstance(key, str) for key in keys or ()):
        named = tuple(sorted(set(keys))) if keys is not None else None
        yield Reference(kind, name, named, source.get("optional") is True)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
