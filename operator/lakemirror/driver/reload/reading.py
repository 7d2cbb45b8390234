"""Defines how to read the change events that a reload has made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lakemirror.api import CdcPipeline
from lakemirror.api.source import Envelope
from lakemirror.driver.codes import OWN_TOPICS
from lakemirror.driver.sequence import GIVEN

RELOAD_TOPIC: Final = f"{OWN_TOPICS}reload"
"""The topic in the origin of rows that a reload wrote."""


def as_read(pipeline: CdcPipeline, *, on_bad_record: str = "fail") -> CdcPipeline:
    """Return the pipeline for these events, which carry their own place.

    A bad event is not a record of the source. It is therefore refused, together with all others, unless
    ``on_bad_record`` says otherwise.
    """
    given: dict[str, Any] = {"by": GIVEN, "epochs": [], "columns": None}
    return of_own_events(pipeline, given, on_bad_record=on_bad_record)


def of_own_events(
    pipeline: CdcPipeline, ordering: Mapping[str, Any], *, on_bad_record: str = "fail"
) -> CdcPipeline:
    """Return the pipeline for change events made by Lakemirror, with this ``ordering``."""
    changes: dict[str, Any] = {
        "envelope": Envelope(),
        "ordering": pipeline.spec.ordering.model_copy(update=dict(ordering)),
        "on_bad_record": on_bad_record,
    }
    return pipeline.model_copy(update={"spec": pipeline.spec.model_copy(update=changes)})
