"""Defines how to read the change events that a reload has made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lakemirror.api import CdcPipeline
from lakemirror.api.source import Envelope
from lakemirror.api.spec import Epoch
from lakemirror.api.topics import unbound
from lakemirror.driver.codes import OWN_TOPICS, RELOAD_TOPIC
from lakemirror.driver.sequence import GIVEN

__all__ = ["RELOAD_TOPIC", "REPAIR_TOPIC", "as_read", "as_repaired", "of_own_events"]

REPAIR_TOPIC: Final = f"{OWN_TOPICS}repair"
"""The topic in the origin of rows that a repair wrote."""


def as_read(pipeline: CdcPipeline) -> CdcPipeline:
    """Return the pipeline for these events, which carry their own place."""
    return of_own_events(pipeline, {"by": GIVEN, "epochs": [], "columns": None})


def as_repaired(pipeline: CdcPipeline, epochs: Iterable[int] = ()) -> CdcPipeline:
    """Return the pipeline for the events of a repair, whose partition is the epoch of their positions.

    These are the declared epochs, and ``epochs``.
    """
    known = {*(each.epoch for each in pipeline.spec.order.epochs), *epochs} - {0}
    begins = ({"epoch": each, "from": {REPAIR_TOPIC: {str(each): 0}}} for each in sorted(known))
    return of_own_events(pipeline, {"epochs": [Epoch.model_validate(each) for each in begins]})


def of_own_events(pipeline: CdcPipeline, ordering: Mapping[str, Any]) -> CdcPipeline:
    """Return the pipeline for change events made by Lakemirror, with this ``ordering``.

    A row that cannot be applied goes to the quarantine, whatever the manifest says of bad records: there is
    no stream to stop, and the other rows do not depend on it.
    """
    spec = pipeline.spec
    changes: dict[str, Any] = {
        **unbound(spec),
        "envelope": Envelope(),
        "ordering": spec.ordering.model_copy(update=dict(ordering)).carried(spec.order),
        "on_bad_record": "quarantine",
    }
    return pipeline.model_copy(update={"spec": spec.model_copy(update=changes)})
