"""What a change of a setting does to stored rows: each setting is in the table, and the page has the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakemirror.api import PipelineSpec, Table
from lakemirror.api.effects import EFFECTS, KEPT_ROWS, NOT_OF_ROWS, Effect, KeptRows
from lakemirror.controller.fields import _JUDGED

PAGE = Path(__file__).parents[2] / "docs" / "operator.md"
EDITS = PAGE.with_name("edits.md")


def paths(model: Any, at: str, deep: set[str]) -> Iterator[str]:
    """The paths of a model's fields, and of those below the fields ``deep``."""
    for name, field in model.model_fields.items():
        path = f"{at}{field.alias or name}"
        inner = [each for each in getattr(field.annotation, "__args__", ()) if hasattr(each, "model_fields")]
        if path in deep and inner:
            yield from paths(inner[0], f"{path}.", deep)
        elif path in deep:
            yield from paths(field.annotation, f"{path}.", deep)
        else:
            yield path


@pytest.mark.parametrize("path", [*paths(Table, "tables.", {"tables.columns"})])
def test_each_setting_of_a_table_says_what_becomes_of_its_rows(path: str) -> None:
    assert path in KEPT_ROWS


@pytest.mark.parametrize(
    "path", [each for each in paths(PipelineSpec, "", {"defaults", "ordering"}) if each != "tables"]
)
def test_each_setting_of_a_pipeline_says_what_becomes_of_rows(path: str) -> None:
    assert (path in KEPT_ROWS) != (path in NOT_OF_ROWS)


def test_what_the_operator_refuses_is_refused() -> None:
    for field in _JUDGED:
        path = f"tables.{Table.model_fields[field].alias or field}"
        assert KEPT_ROWS[path] is KeptRows.REFUSED


def test_the_page_has_the_same_table() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    words = {each.value for each in KeptRows}
    assert {path: text for path, text in rows if text in words} == {
        path.replace("tables.", "tables[].", 1): each.value for path, each in KEPT_ROWS.items()
    }


@pytest.mark.parametrize(
    ("effect", "row"), [(Effect.LIVE, "takes effect at once"), (Effect.RESET, "is refused (`ResetNeeded`)")]
)
def test_the_page_of_edits_names_the_same_fields(effect: Effect, row: str) -> None:
    [fields] = re.findall(rf"^\| (`.+) \| {re.escape(row)}", EDITS.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`([\w.]+)`", fields)) == {
        path for path, each in EFFECTS.items() if each is effect
    }


def test_the_page_of_edits_names_what_needs_a_new_mirror() -> None:
    [row] = re.findall(r"^\| (.+) \| needs a new mirror \|$", EDITS.read_text(encoding="utf-8"), re.MULTILINE)
    refused = {path.rpartition(".")[2] for path, each in KEPT_ROWS.items() if each is KeptRows.REFUSED}
    assert set(re.findall(r"`(\w+)`", row)) == refused - {"by", "columns"}
