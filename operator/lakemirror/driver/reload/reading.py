"""How change events are read that a reload has made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lakemirror.api import CdcPipeline
from lakemirror.api.source import Envelope
from lakemirror.driver.codes import OWN_TOPICS
from lakemirror.driver.sequence import GIVEN

RELOAD_TOPIC: Final = f"{OWN_TOPICS}reload"
"""Where rows that a reload wrote say they come from."""


def as_read(pipeline: CdcPipeline, *, on_bad_record: str = "fail") -> CdcPipeline:
    """The pipeline for these events, which say their place themselves. A bad one is no record of the source,
    so that it is refused, with all of them, unless ``on_bad_record`` says otherwise.
    """
    given: dict[str, Any] = {"by": GIVEN, "epochs": [], "columns": None}
    return of_own_events(pipeline, given, on_bad_record=on_bad_record)


def of_own_events(
    pipeline: CdcPipeline, ordering: Mapping[str, Any], *, on_bad_record: str = "fail"
) -> CdcPipeline:
    """The pipeline for change events that we have made, with this ``ordering``."""
    changes: dict[str, Any] = {
        "envelope": Envelope(),
        "ordering": pipeline.spec.ordering.model_copy(update=dict(ordering)),
        "on_bad_record": on_bad_record,
    }
    return pipeline.model_copy(update={"spec": pipeline.spec.model_copy(update=changes)})
