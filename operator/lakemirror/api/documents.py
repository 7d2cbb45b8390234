"""YAML and JSON as Kubernetes reads them: text stays text, keys are text, and a duplicate key is an error."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, cast

import yaml

from lakemirror.api.errors import ManifestError

MOST_NODES = 200_000
"""How many values a text may have. An alias has those of what it stands for: 700 bytes can have billions."""


class _Loader(yaml.SafeLoader):
    """A safe loader that reads plain scalars as Kubernetes does: there are no dates, and keys are text.

    It stops at more than ``most`` values, and at the first alias unless ``aliases``.
    """

    def __init__(self, text: str, most: int = MOST_NODES, *, aliases: bool = True) -> None:
        super().__init__(text)
        self._left = self._most = most
        self._aliases = aliases
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        alias, before = isinstance(event, yaml.AliasEvent), self._left
        if alias and not self._aliases:
            raise _wrong("an alias is not allowed here", event)
        node: yaml.Node | None = super().compose_node(parent, index)
        if alias and id(node) not in self._sizes:
            raise _wrong("an alias must not contain itself", event)
        self._left -= self._sizes[id(node)] if alias else 1
        if self._left < 0:
            raise _wrong(f"it has more than {self._most:,} values", event)
        if not alias:
            self._sizes[id(node)] = before - self._left
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        self.flatten_mapping(node)
        seen: set[str] = set()
        for key in own:
            name = _key(self.construct_object(key, deep=True), key)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{name} occurs twice", key.start_mark)
            seen.add(name)
        return {
            _key(self.construct_object(key, deep=True), key): self.construct_object(value, deep=True)
            for key, value in node.value
        }


def _wrong(why: str, event: yaml.Event) -> yaml.MarkedYAMLError:
    return yaml.composer.ComposerError(None, None, why, cast(yaml.Mark, event.start_mark))


def _key(key: Any, node: yaml.Node) -> str:
    if isinstance(key, bool):
        return str(key).lower()
    if isinstance(key, str | int | float):
        return str(key)
    raise yaml.constructor.ConstructorError(None, None, "a key must be text", node.start_mark)


def _construct_map(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    return loader.construct_mapping(node, deep=True)


def _construct_bool(loader: _Loader, node: yaml.ScalarNode) -> bool:
    return node.value.lower() in ("y", "yes", "true", "on")


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    digits = node.value.replace("_", "").lower().lstrip("+")
    octal = re.fullmatch(r"-?0[0-7]+", digits) is not None
    based = re.match(r"-?0[box]", digits) is not None
    return int(digits, 8 if octal else 0 if based else 10)


def _construct_float(loader: _Loader, node: yaml.ScalarNode) -> float:
    if not any(c.isdigit() for c in node.value):
        raise yaml.constructor.ConstructorError(
            None, None, f"{node.value} is not a valid number", node.start_mark
        )
    number = float(node.value.replace("_", ""))
    return int(number) if number.is_integer() else number


_PLAIN = {
    # What Kubernetes takes for something else than text, by its own YAML reader.
    "bool": (
        r"y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
        "yYnNtTfFoO",
    ),
    "int": (r"[-+]?(0b[01_]+|0[oO][0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)", "-+0123456789"),
    "float": (
        r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "null": (r"~|null|Null|NULL|", "~nN\0"),
    "merge": (r"<<", "<"),
}


class _Dumper(yaml.SafeDumper):
    """A safe dumper that quotes whatever a reader could take for something other than text."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Loader.yaml_implicit_resolvers = {}
for _tag, (_pattern, _first) in _PLAIN.items():
    for _side in (_Loader, _Dumper):
        _firsts = ["" if c == "\0" else c for c in _first]
        _side.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _firsts)
_Loader.add_constructor("tag:yaml.org,2002:map", _construct_map)
_Loader.add_constructor("tag:yaml.org,2002:bool", _construct_bool)
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


def load_documents(text: str, most: int = MOST_NODES, *, aliases: bool = True) -> list[Any]:
    """Return the documents of a YAML or JSON text that are not empty.

    Raises ManifestError with line and column if the text is neither, has more than ``most`` values, or has an
    alias where there must be none.
    """
    if text.startswith("{"):
        try:
            return [load_json(text)]
        except ValueError:
            pass  # YAML's flow style begins with a brace, too; what is wrong is said below
    try:
        return list(_documents(_Loader(text, most, aliases=aliases)))
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ManifestError([(where, f"not valid YAML: {e.problem or e.context}")]) from None
    except RecursionError:
        raise ManifestError([("", "not valid YAML: it is nested too deep")]) from None
    except (yaml.YAMLError, ValueError) as e:
        raise ManifestError([("", f"not valid YAML: {(str(e) or repr(e)).splitlines()[0]}")]) from None


def _documents(loader: _Loader) -> Iterator[Any]:
    try:
        while loader.check_data():  # type: ignore[no-untyped-call]
            document = loader.get_data()
            if document is not None:
                yield document
    finally:
        loader.dispose()


def load_json(text: str) -> Any:
    """Return the document of a JSON text.

    Raises ValueError if the text is not JSON or has a number that is too long, and ManifestError if a key
    occurs twice or the text is nested too deep.
    """
    try:
        return json.loads(text, object_pairs_hook=_members, parse_constant=_not_a_number)
    except RecursionError:
        raise ManifestError([("", "not valid JSON: it is nested too deep")]) from None


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ManifestError([("", f"not valid JSON: {twice} occurs twice")])
    return members


def _not_a_number(text: str) -> Any:
    raise ManifestError([("", f"not valid JSON: {text} is not a number")])


def dump_document(document: Any) -> str:
    """Return a document as YAML, in its own order."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def with_overrides(document: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Return a copy of the document with single fields set, as in ``target.path=/data/{schema}/{table}``.

    A path is relative to ``spec``. Names that contain dots are in brackets: the source of a table, or a key
    (``tables[public.customers].mode=scd2``, ``spark.conf[spark.ui.enabled]=false``). A value is read as a
    YAML scalar or list; anything else is taken as text, and an empty value removes the field. Raises
    ManifestError with the setting that cannot be applied.
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
        values = list(_documents(_Loader(text)))
    except (yaml.YAMLError, ValueError):
        return text
    if not values:
        return None
    return text if len(values) > 1 or isinstance(values[0], dict) else values[0]


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
