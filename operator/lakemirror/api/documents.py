"""YAML as Kubernetes reads it: text stays text, keys are text, a key given twice is an error."""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Sequence
from typing import Any

import yaml

from lakemirror.api.errors import ManifestError


class _Loader(yaml.SafeLoader):
    """A safe loader whose scalars are those of JSON: no dates, no numbers to the base of 60."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        self.flatten_mapping(node)
        seen: set[str] = set()
        for key in own:
            name = _key(self.construct_object(key, deep=True), key)
            if name in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{name} stands there twice", key.start_mark
                )
            seen.add(name)
        return {
            _key(self.construct_object(key, deep=True), key): self.construct_object(value, deep=True)
            for key, value in node.value
        }


def _key(key: Any, node: yaml.Node) -> str:
    if isinstance(key, bool):
        return str(key).lower()
    if isinstance(key, str | int | float):
        return str(key)
    raise yaml.constructor.ConstructorError(None, None, "a key must be text", node.start_mark)


def _construct_map(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    return loader.construct_mapping(node, deep=True)


_NUMBER = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBER]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(0|[1-9][0-9]*|0x[0-9a-fA-F]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^([-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|\.nan|[-+]?\.inf)$"
    ),
    list("-+0123456789."),
)
_Loader.add_constructor("tag:yaml.org,2002:map", _construct_map)


def load_documents(text: str) -> list[Any]:
    """The documents of a YAML text that are not empty; ManifestError with line and column if it is none."""
    try:
        return [document for document in yaml.load_all(text, _Loader) if document is not None]
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ManifestError([(where, f"not valid YAML: {e.problem or e.context}")]) from None
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        raise ManifestError([("", f"not valid YAML: {str(e).splitlines()[0]}")]) from None


def dump_document(document: Any) -> str:
    """A document as YAML, in the order it has."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)


def with_overrides(document: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The document with single fields set, as in ``target.path=/data/{schema}/{table}``; the given one stays.

    A path is relative to ``spec``. In brackets stand names that have dots themselves: the source of a
    table, or a key (``tables[public.customers].mode=scd2``, ``spark.conf[spark.ui.enabled]=false``). A
    value is read as a YAML scalar or list; anything else is taken as the text it is, and an empty one
    removes the field. ManifestError names the setting that cannot be made.
    """
    changed = copy.deepcopy(document)
    for setting in settings:
        path, equals, text = setting.partition("=")
        parts = _parts(path.removeprefix("spec."))
        if not equals or parts is None:
            raise ManifestError(
                [(f"--set {setting}", "write PATH=VALUE, like target.path=/data/{schema}/{table}")]
            )
        _set(changed, ["spec", *parts], _value(text), setting)
    return changed


def _parts(path: str) -> list[str] | None:
    if re.fullmatch(r"[^.\[\]]+(\.[^.\[\]]+|\[[^\[\]]+\])*", path) is None:
        return None
    return [bracketed or plain for bracketed, plain in re.findall(r"\[([^\]]+)\]|([^.\[\]]+)", path)]


def _value(text: str) -> Any:
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError:
        return text
    return text if isinstance(value, dict) else value


def _set(document: Any, parts: list[str], value: Any, setting: str) -> None:
    here = document
    for part in parts[:-1]:
        here = _descend(here, part, setting)
    if not isinstance(here, dict):
        raise ManifestError([(f"--set {setting}", f"{parts[-2]} has no fields")])
    if value is None:
        here.pop(parts[-1], None)
    else:
        here[parts[-1]] = value


def _descend(here: Any, part: str, setting: str) -> Any:
    if isinstance(here, dict):
        if here.get(part) is None:
            here[part] = [] if part == "tables" else {}
        return here[part]
    if isinstance(here, list):
        named = [element for element in here if isinstance(element, dict) and element.get("source") == part]
        if named:
            return named[0]
        here.append({"source": part})
        return here[-1]
    raise ManifestError([(f"--set {setting}", f"{part} is looked for in something that has no fields")])
