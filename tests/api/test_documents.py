"""A text of a few bytes costs nobody minutes, and JSON is read as Kubernetes reads it."""

from __future__ import annotations

import time

import pytest

from lakemirror.api.documents import load_documents
from lakemirror.api.errors import ManifestError

LEVELS = 30


def bomb() -> str:
    """A list of ten lists of ten lists...: each level is ten times as large as the one before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, LEVELS)]
    return "\n".join(lines)


def test_aliases_are_counted_wherever_they_stand() -> None:
    begun = time.process_time()
    with pytest.raises(ManifestError, match="more than 200,000 values"):
        load_documents(bomb())
    assert time.process_time() - begun < 30  # not hours


def test_merged_maps_are_counted() -> None:
    keys = ", ".join(f"k{number}: x" for number in range(1000))
    merged = "\n".join(f"m{number}: {{<<: *a}}" for number in range(300))
    with pytest.raises(ManifestError, match="more than 200,000 values"):
        load_documents(f"a: &a {{{keys}}}\n{merged}")


def test_a_few_aliases_are_fine() -> None:
    assert load_documents("a: &a [1, 2]\nb: *a\nc: *a\n") == [{"a": [1, 2], "b": [1, 2], "c": [1, 2]}]


def test_an_alias_of_itself_is_refused() -> None:
    with pytest.raises(ManifestError, match="must not contain itself"):
        load_documents("a: &a [*a]")


def test_aliases_may_be_refused() -> None:
    with pytest.raises(ManifestError, match=r"line 2.*an alias is not allowed here"):
        load_documents("a: &a [1]\nb: *a\n", aliases=False)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1, "a": 2}', "a occurs twice"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": ' + "1" * 5000 + "}", "not valid YAML: Exceeds the limit"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deep"),
    ],
)
def test_json_that_is_wrong(text: str, why: str) -> None:
    with pytest.raises(ManifestError, match=why):
        load_documents(text)


def test_json_is_read_as_yaml_is() -> None:
    text = '{"a": [1, "on", true, null, "\\ud83d\\ude00"], "b": {"y": "1"}}'
    assert load_documents(text) == [{"a": [1, "on", True, None, "\U0001f600"], "b": {"y": "1"}}]
    assert load_documents("{a: on}") == [{"a": True}]
