"""Prints the first rows of all Delta tables below a directory: ``python examples/show.py DIRECTORY``."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lakemirror.driver.runtime.session import create_session


def mirrors(directory: Path) -> list[Path]:
    """The Delta tables below a directory, without Lakemirror's own (they begin with _)."""
    found = (log.parent for log in directory.rglob("_delta_log"))
    return sorted(t for t in found if not any(p.startswith("_") for p in t.relative_to(directory).parts))


def main() -> None:
    directory, limit = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    tables = mirrors(directory)
    if not tables:
        sys.exit(f"no Delta table below {directory}")
    console, spark = Console(), create_session("show")
    for path in tables:
        frame = spark.read.format("delta").load(str(path.resolve()))
        shown = [name for name in frame.columns if not name.startswith("__")]
        title = f"{path.relative_to(directory)}: {frame.count()} rows"
        table = Table(*shown, title=title, title_justify="left")
        for row in frame.select(*shown).orderBy(shown[0]).limit(limit).collect():
            table.add_row(*("" if value is None else str(value) for value in row))
        console.print(table)
    spark.stop()


if __name__ == "__main__":
    main()
