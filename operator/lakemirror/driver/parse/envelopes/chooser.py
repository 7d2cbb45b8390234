"""Selects the envelope of a pipeline's records, as configured in the manifest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from lakemirror.api.source import Envelope
from lakemirror.api.spec import PipelineSpec
from lakemirror.driver.parse.encodings import Encoding
from lakemirror.driver.parse.envelopes.base import Classifier
from lakemirror.driver.parse.envelopes.custom import Custom
from lakemirror.driver.parse.envelopes.debezium import Debezium
from lakemirror.driver.parse.envelopes.debezium_flat import DebeziumFlat
from lakemirror.driver.parse.envelopes.maxwell import Maxwell
from lakemirror.driver.parse.values.texts import Writing

_ENVELOPES: Final[Mapping[str, type[Classifier]]] = {
    "debezium": Debezium,
    "debezium-flat": DebeziumFlat,
    "maxwell": Maxwell,
    "custom": Custom,
}


def classifier(spec: PipelineSpec, encoding: Encoding | None = None) -> Classifier:
    """Return the classifier of a pipeline's records; they are JSON unless ``encoding`` is given."""
    keep_before = any(table.primary_key for table in spec.tables)
    return _ENVELOPES[spec.envelope.format](
        spec.envelope, spec.order, keep_before=keep_before, encoding=encoding
    )


def writing(envelope: Envelope) -> Writing:
    """Return how records of an envelope write values if they have no schema."""
    return _ENVELOPES[envelope.format].writing


def metadata(envelope: Envelope) -> Callable[[str], bool]:
    """Return a function that says whether a member of a row belongs to its envelope and is not a column."""
    return partial(_ENVELOPES[envelope.format].is_metadata, envelope)
