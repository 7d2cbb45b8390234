"""Lakemirror keeps Delta Lake tables equal to the databases they mirror."""

from lakemirror.api import CdcPipeline, ManifestError, Pipeline

__version__ = "0.1.0"

__all__ = ["CdcPipeline", "ManifestError", "Pipeline", "__version__"]
