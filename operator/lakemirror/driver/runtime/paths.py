"""Relative paths of a manifest."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from lakemirror.api import CdcPipeline
from lakemirror.api.tables import Target


def with_absolute_paths(pipeline: CdcPipeline) -> CdcPipeline:
    """The pipeline with relative paths taken from the current directory, for Delta takes none."""
    spec = pipeline.spec
    if "spark.hadoop.fs.defaultFS" in spec.spark.conf:
        return pipeline  # relative to a place of that file system

    def moved(target: Target) -> Target:
        return target if target.path is None else target.model_copy(update={"path": _absolute(target.path)})

    source = spec.source
    if source.files is not None:
        files = source.files.model_copy(update={"path": _absolute(source.files.path)})
        source = source.model_copy(update={"files": files})
    changes = {
        "source": source,
        "checkpoint": _absolute(spec.checkpoint),
        "target": moved(spec.target),
        "tables": [
            table if table.target is None else table.model_copy(update={"target": moved(table.target)})
            for table in spec.tables
        ],
    }
    return pipeline.model_copy(update={"spec": spec.model_copy(update=changes)})


def _absolute(path: str) -> str:
    if urlsplit(path).scheme or path.startswith("/"):
        return path
    return f"{os.getcwd()}/{path.removeprefix('./')}"
