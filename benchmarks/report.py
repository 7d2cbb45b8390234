"""Writes RESULTS.md from the figures of all measured parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

_NOT_RUN = (
    "Not run beside them: Spark's AutoCDC, which cannot write to Delta, and for which Iceberg 1.12.0 has no "
    "release for Spark 4.2 yet (that for 4.1 does not load); and Apache Hudi 1.2.0, which has none either."
)


def store(folder: Path, part: str, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Store a part's figures next to those of the others in RESULTS.json, and return all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "RESULTS.json"
    parts: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    parts[part] = measured
    path.write_text(json.dumps(parts, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return parts


def write(folder: Path, modules: Mapping[str, ModuleType], parts: Mapping[str, Any]) -> None:
    """Write RESULTS.md and the plots."""
    for name in parts:
        if "skipped" in parts[name]["figures"]:
            continue
        for plot, drawn in modules[name].plots(parts[name]["figures"]).items():
            (folder / "plots").mkdir(exist_ok=True)
            (folder / "plots" / f"{plot}.svg").write_text(drawn, "utf-8")
    (folder / "RESULTS.md").write_text(document(modules, parts), "utf-8")


def document(modules: Mapping[str, ModuleType], parts: Mapping[str, Any]) -> str:
    """Return the whole text: what the figures depend on, then a section for each measured part."""
    sections = [
        "# Results",
        f"`python -m benchmarks` measures and writes this; raw figures are in RESULTS.json. {_NOT_RUN}",
    ]
    sections += [environments(parts)]
    for name, module in modules.items():
        if name in parts:
            sections += [f"## {module.TITLE}", _section(module, parts[name])]
    missing = [name for name in modules if name not in parts]
    if missing:
        sections.append(f"Not measured: {', '.join(missing)}.")
    return "\n\n".join(sections) + "\n"


def _section(module: ModuleType, part: Mapping[str, Any]) -> str:
    figures = part["figures"]
    if "skipped" in figures:
        return f"Skipped: {figures['skipped']}"
    shown = [f"![{name}](plots/{name}.svg)" for name in module.plots(figures)]
    took = f"{part['date']}, {part['minutes']:.0f} minutes."
    return "\n\n".join([module.text(figures), *shown, took])


def environments(parts: Mapping[str, Any]) -> str:
    """Return what the figures depend on, once for all parts that share it."""
    found: dict[str, list[str]] = {}
    for name, part in parts.items():
        about = "; ".join(f"{key}: {value}" for key, value in part["environment"].items())
        found.setdefault(about, []).append(name)
    if len(found) == 1:
        return f"{next(iter(found))}."
    return "\n".join(f"- {', '.join(names)}: {about}." for about, names in found.items())
