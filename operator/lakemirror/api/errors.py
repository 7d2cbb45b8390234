"""Turns what pydantic found into one clear line per mistake, with the path of the field."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from lakemirror.api.logins import redacted

Loc = tuple[str | int, ...]


class ManifestError(Exception):
    """A manifest is wrong. ``errors`` are pairs of the field's path (may be empty) and what is wrong."""

    def __init__(self, errors: Sequence[tuple[str, str]]) -> None:
        self.errors = [(path, redacted(message)) for path, message in errors]
        super().__init__("\n".join(line(path, message) for path, message in self.errors))


def line(path: str, message: str) -> str:
    """Format one error as one line."""
    return f"{path}: {message}" if path else message


def from_validation(error: ValidationError, document: Any, model: type[BaseModel]) -> ManifestError:
    """Return the same errors in our words; ``document`` was validated against ``model``."""
    details = error.errors(include_url=False)
    # A misspelt field is one mistake, though the right one is missing for it.
    meant = {(*e["loc"][:-1], _nearest(e, model)) for e in details if e["type"] == "extra_forbidden"}
    found = [
        (_location(e), _message(e, model))
        for e in details
        if not (e["type"] == "missing" and e["loc"] in meant)
    ]
    return ManifestError([(path_of(loc, document), message) for loc, message in _first_of_each(found)])


def _nearest(error: ErrorDetails, model: type[BaseModel]) -> str | None:
    """Return the known field that an unknown one was perhaps meant to be."""
    *above, name = error["loc"]
    return _close(str(name), _fields_at(model, above))


def path_of(loc: Iterable[str | int], document: Any = None) -> str:
    """Format ``('spec', 'tables', 0, 'mode')`` as ``spec.tables[public.customers].mode``.

    List elements are named by their ``source`` if they have one, expectations by their ``name``.
    """
    path, here = "", document
    for part in loc:
        inside = _step(here, part)
        if isinstance(part, int):
            key = "name" if path.endswith(".expectations") else "source"
            name = inside.get(key) if isinstance(inside, Mapping) else None
            path += f"[{name if isinstance(name, str) else part}]"
        elif "." in part:
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
        here = inside
    return path


def _step(here: Any, part: str | int) -> Any:
    if isinstance(here, Mapping):
        return here.get(part)
    if isinstance(here, Sequence) and isinstance(part, int) and part < len(here):
        return here[part]
    return None


def _location(error: ErrorDetails) -> Loc:
    # Tags of unions are written <so>; [key] says that the key of a map is meant, not its value.
    loc = tuple(p for p in error["loc"] if not (isinstance(p, str) and (p == "[key]" or p.startswith("<"))))
    return loc + tuple(error.get("ctx", {}).get("at", ()))


def _first_of_each(found: list[tuple[Loc, str]]) -> list[tuple[Loc, str]]:
    first: dict[Loc, str] = {}
    for loc, message in found:
        first.setdefault(loc, message)
    return list(first.items())


def _message(error: ErrorDetails, model: type[BaseModel]) -> str:
    kind, value, ctx = error["type"], error["input"], error.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return "unknown field" + _meant(_nearest(error, model))
        case "missing":
            return "is required"
        case "literal_error":
            known = [str(a) for a in _literals(ctx["expected"])]
            return f"must be {_either(known)}, not {_shown(value)}" + _meant(_close(str(value), known))
        case "int_type" | "int_from_float" | "int_parsing":
            return f"must be a whole number, not {_shown(value)}"
        case "bool_type":
            return f"must be true or false, not {_shown(value)}"
        case "string_type":
            return f"must be text, not {_shown(value)}" + (
                " (put it in quotes)" if isinstance(value, bool | int | float) else ""
            )
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"must be a mapping of fields, not {_shown(value)}"
        case "list_type":
            return f"must be a list, not {_shown(value)}"
        case "greater_than_equal":
            return f"must be at least {ctx['ge']}, not {_shown(value)}"
        case "less_than_equal":
            return f"must be at most {ctx['le']}, not {_shown(value)}"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return f"is too long: at most {ctx['max_length']} characters, not {len(value)}"
        case "too_short":
            return f"must have at least {_count(ctx['min_length'])}"
        case "too_long":
            return f"must have at most {_count(ctx['max_length'])}, not {ctx['actual_length']}"
    return error["msg"]


def _count(number: int) -> str:
    return f"{number} element" if number == 1 else f"{number} elements"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _either(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def _literals(expected: str) -> list[str]:
    return [word.strip().strip("'") for word in expected.replace(" or ", ", ").split(",")]


def _close(word: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


def _meant(close: str | None) -> str:
    return f"; did you mean {close}?" if close else ""


def _fields_at(model: type[BaseModel], loc: Iterable[str | int]) -> list[str]:
    """Return the names of the fields of the object at ``loc``, as in YAML."""
    here: Any = model
    for part in loc:
        if isinstance(part, str) and part.startswith("<"):
            continue
        here = _inside(here, part)
    found = _model_in(here)
    return [info.alias or name for name, info in found.model_fields.items()] if found else []


def _inside(annotation: Any, part: str | int) -> Any:
    model = _model_in(annotation)
    if model is not None:
        return next((f.annotation for n, f in model.model_fields.items() if part in (n, f.alias)), None)
    container = next((a for a in _arms(annotation) if get_origin(a) in (list, dict)), None)
    return get_args(container)[-1] if container else None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    return next((a for a in _arms(annotation) if isinstance(a, type) and issubclass(a, BaseModel)), None)


def _arms(annotation: Any) -> list[Any]:
    """Return the types that a field may have, with ``X | None`` and ``Annotated`` unwrapped."""
    if get_origin(annotation) is Annotated:
        return _arms(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [arm for a in get_args(annotation) for arm in _arms(a)]
    return [annotation]
