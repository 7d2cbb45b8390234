"""The contract: the resource ``CdcPipeline``, its checks and its CRD. No Spark, no Kubernetes client."""

from lakemirror.api.base import duration_seconds
from lakemirror.api.documents import load_documents, with_overrides
from lakemirror.api.errors import ManifestError
from lakemirror.api.pipeline import API_VERSION, GROUP, KIND, VERSION, CdcPipeline, Pipeline
from lakemirror.api.spec import PipelineSpec
from lakemirror.api.status import PipelineStatus
from lakemirror.api.tables import AmbiguousTable, Table, match_table

__all__ = [
    "API_VERSION",
    "GROUP",
    "KIND",
    "VERSION",
    "AmbiguousTable",
    "CdcPipeline",
    "ManifestError",
    "Pipeline",
    "PipelineSpec",
    "PipelineStatus",
    "Table",
    "duration_seconds",
    "load_documents",
    "match_table",
    "with_overrides",
]
