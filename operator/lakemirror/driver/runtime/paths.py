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
        return target if target.path is None else target.model_copy(update={"path": absolute(target.path)})

    source = spec.source
    if source.files is not None:
        files = source.files.model_copy(update={"path": absolute(source.files.path)})
        source = source.model_copy(update={"files": files})
    if source.change_feed is not None and source.change_feed.path is not None:
        feed = source.change_feed.model_copy(update={"path": absolute(source.change_feed.path)})
        source = source.model_copy(update={"change_feed": feed})
    verify = spec.verify
    if verify is not None and verify.snapshot is not None:
        snapshot = verify.snapshot.model_copy(update={"path": absolute(verify.snapshot.path)})
        verify = verify.model_copy(update={"snapshot": snapshot})
    changes = {
        "source": source,
        "verify": verify,
        "checkpoint": absolute(spec.checkpoint),
        "target": moved(spec.target),
        "tables": [
            table if table.target is None else table.model_copy(update={"target": moved(table.target)})
            for table in spec.tables
        ],
    }
    return pipeline.model_copy(update={"spec": spec.model_copy(update=changes)})


def absolute(path: str) -> str:
    """The path, from the current directory where it is relative."""
    if urlsplit(path).scheme or path.startswith("/"):
        return path
    return f"{os.getcwd()}/{path.removeprefix('./')}"
