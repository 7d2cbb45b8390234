"""How much of a progress report is kept where space is short: in a ConfigMap and in the status.

The report is the document that ``lakemirror.driver.progress`` describes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

TABLES_SHOWN = 100
DRIFTS_SHOWN = 10
TEXT_SHOWN = 512

Document = dict[str, Any]


def shown_tables(tables: Iterable[Document], most: int = TABLES_SHOWN) -> list[Document]:
    """The tables of a report that a person should see first: errors, drift, then the longest without news.

    At most ``most``; long texts and long lists of columns are cut.
    """
    return [_cut(table) for table in sorted(tables, key=_rank)[:most]]


def _rank(table: Document) -> tuple[bool, bool, str, str]:
    """Smaller is more important. A table with no event so far has nothing to wait for."""
    newest = str(table.get("lastEventTime") or "9")
    return not table.get("error"), not table.get("drift"), newest, str(table.get("source"))


def _cut(table: Document) -> Document:
    drift = [_cut_texts(drift) for drift in (table.get("drift") or [])[:DRIFTS_SHOWN]]
    return _cut_texts(table) | ({"drift": drift} if "drift" in table else {})


def _cut_texts(document: Document) -> Document:
    return {k: v[:TEXT_SHOWN] if isinstance(v, str) else v for k, v in document.items()}


def shortened(document: Document) -> Document:
    """A report that fits a ConfigMap, however many tables there are; ``tablesTotal`` still tells how many."""
    texts = _cut_texts({k: v for k, v in document.items() if k != "tables"})
    return texts | {"tables": shown_tables(document.get("tables") or [])}
