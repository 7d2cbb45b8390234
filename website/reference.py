"""The reference: pages generated from the models and the commands when the site is built."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lakemirror.api import crd
from lakemirror.api.effects import Effect, effect
from lakemirror.api.report import COUNTERS, Counts
from lakemirror.cli.main import CONTEXT, EXIT_CODES, main
from website.conditions import conditions_page
from website.settings import chart_page, environment_page
from website.tables import table

OPERATOR = Path(__file__).parents[1] / "operator" / "lakemirror"
Schema = dict[str, Any]


def pages() -> dict[str, str]:
    """Return the text of each page, by its path on the site."""
    return {
        "reference/spec.md": spec_page(),
        "reference/status.md": status_page(),
        "reference/conditions.md": conditions_page(),
        "reference/columns.md": columns_page(),
        "reference/audit.md": audit_page(),
        "reference/commands.md": commands_page(),
        "reference/environment.md": environment_page(),
        "reference/chart.md": chart_page(),
    }


def spec_page() -> str:
    """Return the page of all spec fields, with what a change of each does to a running driver."""
    effects = "\n".join(f"- **{each.name.lower()}**: {each.value}." for each in Effect)
    rows = []
    for path, node, required in fields(crd.resource_schema()["properties"]["spec"]):
        plain = path.replace("[]", "").replace(".KEY", "")
        given = "required" if required else _default(node)
        said = node.get("description", "")
        rows.append((f"`{path}`", _type(node), given, effect(plain).name.lower(), said))
    return f"""# CdcPipeline: the spec

Every field below `spec`. `[]` stands for the entries of a list and `KEY` for a name of your choice. What a
change of a field does to a driver that runs:

{effects}

What becomes of single tables (target, key, mode, filter and shards, and some more) is judged as it comes out
of `tables`, `target` and `defaults` together: a change that the checkpoint cannot follow is refused, too.

{table(("field", "type", "default", "a change", "meaning"), rows)}
"""


def status_page() -> str:
    """Return the page of all status fields."""
    rows = [
        (f"`{path}`", _type(node), node.get("description", ""))
        for path, node, _ in fields(crd.resource_schema()["properties"]["status"])
    ]
    return f"""# CdcPipeline: the status

Every field below `status`, which only the operator writes. A field that is not there is not known. The
conditions have [a page of their own](conditions.md).

{table(("field", "type", "meaning"), rows)}
"""


def columns_page() -> str:
    """Return the page of the columns that mirrors have besides those of the source."""
    found = literals(OPERATOR / "driver" / "tables" / "columns.py")
    told: dict[str, str] = found["COMMENTS"]
    parts = []
    shards = {found["SHARD"]: "string"}
    for title, columns in (
        ("Every mirror", found["METADATA"]),
        ("Mirrors of versions (scd2), besides", found["VERSIONS"]),
        ("Mirrors of several shards, besides", shards),
    ):
        rows = [(f"`{name}`", f"`{kind}`", told[name]) for name, kind in columns.items()]
        parts.append(f"## {title}\n\n{table(('column', 'type', 'meaning'), rows)}")
    body = "\n\n".join(parts)
    return f"""# Columns of a mirror

A mirror has the columns of its source, and these. The manifest may add [further columns](../columns.md).

{body}
"""


AUDIT = {
    "committed_at": "When the batch was committed",
    "query_id": "The query of the checkpoint; another one after a reset, and for each resync",
    "batch_id": "The number of the batch, within its query",
    "extent": "Which input the batch had",
    "source": "The source table; null in the row of the batch as a whole",
    "target": "Where its mirror is",
    "version": "The version of the Delta table after the batch",
    "tombstones_retained": "Tombstones kept then",
    "last_event_time": "When the source made the newest change that was applied",
    "drift": "Columns that changed and what was done about it, as JSON",
    "error": "Why the table was refused",
    "positions": "What is remembered of the source's positions, as JSON",
    "violations_by": "Expectations that were not met, as JSON",
    "seconds": "How long the batch took, in the row of the batch as a whole",
    "first_seq": "The position (`__seq` in hexadecimal digits) of the first change that was new",
    "last_seq": "The position of the last change that was new; before `first_seq` where none was",
    "log": "The log of the source that these positions belong to (`source.name`)",
    "gap": "A position before all records that were kept aside; null where none was",
    "checked": "The version up to which the driver knows all commits; null if that is `version`",
    "since": "When the first batch of a sum (`spec.retention.audit`) was committed; null in other rows",
}


def audit_page() -> str:
    """Return the page of the audit's columns."""
    counters = {name: Counts.model_fields[name].description or "" for name in COUNTERS}
    rows = []
    for column in audit_columns().split(", "):
        name, kind = column.split()
        rows.append((f"`{name}`", kind, (AUDIT | counters)[name].rstrip(".")))
    return f"""# The audit

`<checkpoint>/audit` is a Delta table with one row for each table of a batch, and one with a null `source` for
the batch as a whole. A batch comes in within half a minute; until then it stands in
`<checkpoint>/audit-pending`.

{table(("column", "type", "meaning"), rows)}
"""


def audit_columns() -> str:
    """Return the schema of the audit from its module's text, because importing the module needs Spark."""
    module = OPERATOR / "driver" / "record" / "audit.py"
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COLUMNS":
            return str(eval(ast.unparse(node.value), {"COUNTERS": COUNTERS}))
    raise AssertionError(f"{module} has no COLUMNS")


def commands_page() -> str:
    """Return the page of the commands, each with its options, and the exit codes."""
    codes = [
        (f"`{name}`", str(code), meaning)
        for name in sorted(EXIT_CODES)
        for code, meaning in EXIT_CODES[name].items()
    ]
    parts = [
        f"# Commands\n\n{_paragraphs(main.help or '')}",
        f"## Exit codes\n\n{table(('command', 'exit code', 'meaning'), codes)}",
        f"### The driver's container\n\n{container_exit_codes()}",
    ]
    for name in sorted(main.commands):
        command = main.commands[name]
        context = click.Context(command, info_name=f"lakemirror {name}", **CONTEXT)  # type: ignore[arg-type]
        parts.append(f"## lakemirror {name}\n\n```text\n{command.get_help(context)}\n```")
    return "\n\n".join(parts) + "\n"


def container_exit_codes() -> str:
    """Return what the driver's command in a pod says of its exit codes; importing its module needs Spark."""
    module = OPERATOR / "pod" / "__main__.py"
    return _paragraphs(ast.get_docstring(ast.parse(module.read_text())) or "")


def literals(module: Path) -> dict[str, Any]:
    """Return the constants of a module without importing it and what it needs."""
    found: dict[str, Any] = {}
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def fields(node: Schema, path: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Yield all fields below a node of the CRD's schema: path, schema and whether it is required."""
    required = node.get("required", ())
    for name, each in node.get("properties", {}).items():
        place = f"{path}.{name}" if path else name
        yield place, each, name in required
        yield from fields(each, place)
        values = each.get("additionalProperties")
        if isinstance(values, dict) and "properties" in values:
            yield from fields(values, f"{place}.KEY")
        if "properties" in each.get("items", {}):
            yield from fields(each["items"], f"{place}[]")


def _type(node: Schema) -> str:
    if "enum" in node:
        return " or ".join(f"`{each}`" for each in node["enum"])
    if node.get("type") == "array":
        return f"list of {_type(node['items'])}"
    values = node.get("additionalProperties")
    if isinstance(values, dict):
        return f"map to {_type(values)}"
    return str(node.get("type", "any"))


def _default(node: Schema) -> str:
    if "default" not in node or (node.get("properties") and node["default"] != {}):
        return ""  # the fields inside have their own defaults
    return f"`{json.dumps(node['default'])}`"


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
