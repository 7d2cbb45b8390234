"""Changes of a good spec that are refused: fields of spec, the path that is named, a word of the reason."""

from __future__ import annotations

from typing import Any

KAFKA: dict[str, Any] = {"bootstrapServers": "k:9092", "topics": ["a"], "topicPattern": None}
SASL = {"protocol": "SASL_SSL", "mechanism": "PLAIN", "secret": "s"}
YET, EFFECT = "not supported yet", "no effect"


def table(**fields: Any) -> dict[str, Any]:
    return {"tables": [{"source": "public.a", **fields}]}


NOT_SUPPORTED: list[tuple[dict[str, Any], str, str]] = [
    ({"source": {"kafka": None, "changeFeed": {"path": "/t"}}}, "spec.source.changeFeed", YET),
    ({"source": {"kafka": None, "files": {"path": "/i", "format": "csv"}}}, "spec.source.files.format", YET),
    ({"source": {"kafka": {**KAFKA, "security": SASL}}}, "spec.source.kafka.security.protocol", YET),
    ({"envelope": {"format": "maxwell"}}, "spec.envelope.format", YET),
    (
        {"envelope": {"encoding": "avro", "schemaRegistry": {"url": "http://r"}}},
        "spec.envelope.encoding",
        YET,
    ),
    ({"defaults": {"mode": "scd2"}}, "spec.defaults.mode", YET),
    (table(mode="scd2"), "spec.tables[public.a].mode", YET),
    (table(filter="id > 1"), "spec.tables[public.a].filter", YET),
    (table(onConflict="fail"), "spec.tables[public.a].onConflict", YET),
    ({"ordering": {"by": "columns", "columns": ["v"]}}, "spec.ordering.by", YET),
    ({"maintenance": {}}, "spec.maintenance", YET),
    ({"envelope": {"schemaRegistry": {"url": "http://r"}}}, "spec.envelope.schemaRegistry", EFFECT),
    ({"ordering": {"by": "offset", "toleranceMs": 10}}, "spec.ordering.toleranceMs", EFFECT),
    ({"restart": {"resetAfter": "1h"}, "spark": {"backend": "kubeflow"}}, "spec.restart.resetAfter", EFFECT),
    (
        {"trigger": {"availableNow": True, "schedule": "@daily"}, "spark": {"backend": "apache"}},
        "spec.trigger.schedule",
        EFFECT,
    ),
    (
        {"source": {"kafka": {**KAFKA, "startingOffsets": {"b": {"0": 1}}}}},
        "spec.source.kafka.startingOffsets.b",
        "topics",
    ),
    (
        {"source": {"kafka": KAFKA}, "ordering": {"epochs": [{"epoch": 1, "from": {"b": {"0": 1}}}]}},
        "spec.ordering.epochs[0].from.b",
        "topics",
    ),
    (
        {"defaults": {"mode": "append"}, **table(delete={"type": "hard"})},
        "spec.tables[public.a].delete",
        EFFECT,
    ),
    (
        {"defaults": {"mode": "append"}, **table(primaryKey=["id"])},
        "spec.tables[public.a].primaryKey",
        EFFECT,
    ),
    (table(mode="append", primaryKey=["id"]), "spec.tables[public.a].primaryKey", EFFECT),
    (
        {"defaults": {"mode": "append", "delete": {"type": "soft", "column": "gone"}}},
        "spec.defaults.delete",
        EFFECT,
    ),
]
