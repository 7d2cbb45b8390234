"""What pages say about fields: fragments of manifests are valid, and no field is left out."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakemirror.api import CdcPipeline, ManifestError, crd, load_documents
from lakemirror.api.supported import not_supported
from website.reference import fields

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted(ROOT.glob("docs/**/*.md"))]
BLOCK = re.compile(r"^ *```.*?^ *```|^ {8}[^\n]*", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
SCHEMA = crd.resource_schema()["properties"]
SPEC = [path for path, _, _ in fields(SCHEMA["spec"])]

OTHERS = {
    "Authorization",  # HTTP
    "If-None-Match",
    "security.protocol",  # Kafka's clients and Debezium
    "snapshot.mode",
    "__deleted",  # members of records
    "op",
    "LAKEMIRROR_LOG_LEVEL",  # Kubernetes, its tools and the chart
    "grafana_dashboard",
    "honor_labels",
    "observedGeneration",
    "rbac.aggregate",
    "restartPolicy",
    "schedulerName",
    "uninstallCheck",
    "wait",
    "whenUnsatisfiable",
}
"""Names before a colon that are no field of the manifest."""
NEEDED: dict[str, dict[str, Any]] = {
    "envelope": {"envelope": {"format": "custom"}},
    "tables[].columns.encodings": {
        "tables": [{"source": "shop.orders", "columns": {"types": {"COLUMN": "binary"}}}]
    },
    "tables[].snapshot": {"verify": {"jdbc": {"url": "jdbc:postgresql://db/shop"}}},
    "unlisted": {"tables": [{"source": "shop.orders"}]},
}
"""What has to stand beside a field (or below the first name of a path) for it to be valid."""


def fragments() -> Iterator[tuple[str, str, str]]:
    """The fragments ``field: value`` of all pages, apart from those of other languages."""
    for path in PAGES:
        for code in INLINE.findall(BLOCK.sub("", path.read_text())):
            field, colon, value = code.partition(": ")
            if colon and re.fullmatch(r"[\w.\[\]-]+", field) and is_ours(field, value):
                yield str(path.relative_to(ROOT)), field, value


def is_ours(field: str, value: str) -> bool:
    """Whether a page speaks of the manifest, and not of a setting of another program."""
    if (field, value) == ("deletionPolicy", "WaitForTermination"):  # of Flux
        return False
    of_kafka_connect = field.count(".") > 1 and field.split(".")[0] not in {"spec", *SPEC}
    return field not in OTHERS and not of_kafka_connect


FRAGMENTS = sorted(set(fragments()))


@pytest.mark.parametrize(("page", "field", "value"), FRAGMENTS, ids=map(" ".join, FRAGMENTS))
def test_a_fragment_on_a_page_is_valid(page: str, field: str, value: str) -> None:
    [given] = load_documents(f"value: {value.replace(', ...}', '}')}")
    found = [errors(path, given["value"]) for path in places(field)]
    assert found, f"{page}: the manifest has no field {field}"
    assert [] in found, f"{page}: {min(found, key=len)}"


def places(field: str) -> list[str]:
    """The fields of the spec that a page may mean: a whole path, a setting of Spark, or the end of a path."""
    field = field.removeprefix("spec.")
    if field.startswith("spark.") and field not in SPEC:
        return [f"spark.conf.{field.replace('.', '|')}"]
    return [path for path in SPEC if path == field or path.endswith(f".{field}")]


def errors(path: str, value: Any) -> list[str]:
    """What ``validate`` says about a manifest with this field alone, as far as it is about this field."""
    needed = NEEDED.get(path) or NEEDED.get(path.partition(".")[0]) or {}
    spec: dict[str, Any] = copy.deepcopy({**BASE, **needed})
    here: Any = spec
    *above, last = path.split(".")
    where = "spec"
    for part in above:
        name = part.removesuffix("[]").replace("KEY", "key")
        where = f"{where}.{name}"
        if part.endswith("[]"):
            element = (
                {"name": "ok", "condition": "v > 0"} if name == "expectations" else {"source": "shop.orders"}
            )
            here = here.setdefault(name, [element])[0]
            where = f"{where}[{next(iter(element.values()))}]"
        else:
            here = here.setdefault(name, {})
    last = last.replace("|", ".")
    here[last] = value
    document = {
        "apiVersion": "lakemirror.io/v1alpha1",
        "kind": "CdcPipeline",
        "metadata": {"name": "shop"},
        "spec": spec,
    }
    where = f"{where}[{last}]" if "." in last else f"{where}.{last}"
    return [message for at, message in said(document) if at.startswith(where) or message == "unknown field"]


BASE = {
    "source": {"kafka": {"bootstrapServers": "kafka:9092", "topicPattern": "shop"}},
    "target": {"path": "/lake/{schema}/{table}"},
    "checkpoint": "/lake/_checkpoint",
}


def said(document: dict[str, Any]) -> list[tuple[str, str]]:
    try:
        return not_supported(CdcPipeline.from_dict(document).spec)
    except ManifestError as error:
        return error.errors


@pytest.mark.parametrize(
    ("field", "value", "valid"),
    [
        ("mode", "scd2", True),
        ("mode", "scd3", False),
        ("tables[].snapshot", "jdbc", True),
        ("onUnrepresentable", None, False),
        ("spark.ui.enabled", "false", True),
        ("spark.sql.ansi.enabled", "false", False),
        ("ordering.by", "position", False),
        ("delete", {"type": "soft", "column": "gone"}, True),
        ("delete", {"kind": "soft"}, False),
    ],
)
def test_what_counts_as_valid(field: str, value: Any, valid: bool) -> None:
    assert ([] in [errors(path, value) for path in places(field)]) == valid


def test_a_field_that_is_not_there_has_no_place() -> None:
    assert places("onBadRow") == places("spec.tables.mode") == []


def test_pages_show_fragments() -> None:
    assert len(FRAGMENTS) > 50


def test_each_field_of_the_spec_is_on_a_page() -> None:
    """In code, because many names are also words."""
    words: set[str] = set()
    for page in PAGES:
        text = page.read_text()
        for code in [*BLOCK.findall(text), *INLINE.findall(BLOCK.sub("", text))]:
            words.update(re.findall(r"\w+", code))
    names = {path: re.findall(r"\w+", path.replace(".KEY", ""))[-1] for path in SPEC}
    assert len(SPEC) > 100
    assert [path for path, name in names.items() if name not in words] == []


def test_the_page_of_the_status_shows_each_field() -> None:
    text = (ROOT / "docs" / "status.md").read_text()
    [shown] = re.findall(r"^```yaml\n(status:.*?)^```", text, re.MULTILINE | re.DOTALL)
    status = yaml.safe_load(shown)["status"]
    document = {"apiVersion": "lakemirror.io/v1alpha1", "kind": "CdcPipeline", "metadata": {"name": "shop"}}
    CdcPipeline.from_dict({**document, "spec": BASE, "status": status})
    told = [path for path, _, _ in fields(SCHEMA["status"])]
    assert len(told) > 100
    assert set(told) - set(paths(status)) - set(INLINE.findall(text)) == set()


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    """The paths of a document as the reference writes them: ``[]`` for the entries of a list."""
    if isinstance(value, list):
        for each in value:
            yield from paths(each, f"{prefix}[]")
    elif isinstance(value, dict):
        for name, each in value.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path
            yield from paths(each, path)
