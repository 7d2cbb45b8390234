"""Looks at all mirrors when a run begins, also at those of tables that have no changes (`plan.left`)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from lakemirror.api import AmbiguousTable
from lakemirror.driver.checkpoint import identity, tokens
from lakemirror.driver.checkpoint.storage import Storage
from lakemirror.driver.errors import LakemirrorError, cause_of, stops_pipeline
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.places import Places
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.plan.targets import canonical
from lakemirror.driver.read.base import Batch
from lakemirror.driver.record import audit
from lakemirror.driver.record.beginning import latest, since
from lakemirror.driver.record.history import AuditHistory
from lakemirror.driver.results import BatchResult, Left, TableResult
from lakemirror.driver.runtime.context import RunContext
from lakemirror.driver.tables import commits
from lakemirror.driver.verify.table import named, table_of

_log = logging.getLogger(__name__)


def look(run: RunContext, history: AuditHistory) -> AuditHistory:
    """Look whether the mirrors are where earlier runs left them.

    Changes by hand are recorded in the audit, and the history that is returned includes them. Tables that are
    to be held are reported at once.
    """
    begun = identity.stored(run.storage)
    known = {} if begun is None else history.left_since(since(history, begun))
    if not known:
        return history
    places = Places(known, lambda: known, warn=run.announcer.warn)
    waiting = tokens.waiting(run.storage, run.pipeline.spec)
    left = {canonical(target): each for target, each in known.items()}
    tables = [each for each in history.tables.values() if _may_differ(run, each, left)]
    opened = [each for each in _opened(run, tables) if each.settings.source not in waiting]
    found = {str(each.name): told for each in opened if (told := _looked(run, places, each)) is not None}
    run.announcer.progress.found(found)
    by_hand = {name: each for name, each in found.items() if each.drift}
    if not by_hand:
        return history
    batch = Batch(f"look-{run.announcer.progress.run_id}", 0)
    noted = BatchResult(0, tables=by_hand)
    about = (run.session, run.pipeline.spec.checkpoint, batch, noted, None)
    audit.keep(*about, not_before=latest(history, begun))
    return audit.history(run.session, run.pipeline.spec.checkpoint)


def is_lost(table: MirroredTable, storage: Storage) -> bool:
    """Return whether a table has to be held because its mirror was removed, restored or replaced."""
    begun = identity.stored(storage)
    if begun is None:
        return False
    history = audit.history(table.spark, table.spec.checkpoint)
    known = history.left_since(since(history, begun))
    return Places(known, lambda: known).look(table) is not None


def accept(table: MirroredTable) -> BatchResult:
    """Record that a mirror is right as it is, and return that as the result of a batch."""
    result = TableResult(str(table.name), str(table.location), table.mirror.version)
    told = BatchResult(0, tables={result.source: result})
    checkpoint, batch = table.spec.checkpoint, Batch(f"look-{uuid.uuid4().hex}", 0)
    before = latest(audit.history(table.spark, checkpoint))
    audit.keep(table.spark, checkpoint, batch, told, None, not_before=before)
    return told


def _may_differ(run: RunContext, table: TableResult, left: Mapping[str, Left]) -> bool:
    """Return whether a mirror may not be as it was left. Most are, which their newest version shows.

    Others may have committed while the last batch was written.
    """
    known = left.get(canonical(table.target)) if table.target else None
    if known is None or table.target is None:
        return False
    if run.pipeline.spec.target.jdbc is not None or "/" not in table.target or known.checked != known.version:
        return True
    try:
        return not commits.is_newest(run.session, table.target, known.version)
    except Exception as error:
        _not_looked_at(run, table.source, error)
        return False


def _opened(run: RunContext, tables: list[TableResult]) -> Iterator[MirroredTable]:
    """Yield the tables whose mirrors are still at the same targets. Batches say what is wrong with others."""
    opens = partial(table_of, run.session, run.pipeline, open_store=run.target.open)
    for each in tables:
        try:
            settings = run.pipeline.spec.table_settings(each.source)
            if settings is None or settings.suspend:
                continue
            table = opens(named(each.source))
        except (LakemirrorError, Refused, AmbiguousTable) as error:
            _log.debug("%s is not looked at: %s", each.source, error)
            continue
        except Exception as error:
            _not_looked_at(run, each.source, error)
            continue
        if canonical(str(table.location)) == canonical(each.target or ""):
            yield table


def _not_looked_at(run: RunContext, source: str, error: Exception) -> None:
    """Report that a mirror cannot be read. Its table is held once it has changes; the others go on."""
    if stops_pipeline(error, run.session):
        raise error
    _log.warning("the mirror of %s cannot be looked at: %s", source, cause_of(error))


def _looked(run: RunContext, places: Places, table: MirroredTable) -> TableResult | None:
    """Return what is to be said about a mirror, or None if it is as it was left or cannot be read."""
    result = TableResult(str(table.name), str(table.location))
    try:
        lost = places.look(table)
    except Exception as error:
        _not_looked_at(run, str(table.name), error)
        return None
    if lost is not None:
        run.announcer.warn(lost)
        return replace(result, error=lost)
    done = places.written(table, replace(result, version=table.mirror.version))
    return done if done.drift else None
