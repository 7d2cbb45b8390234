"""Resolves the relative paths in a manifest."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from lakemirror.api import CdcPipeline
from lakemirror.api.tables import Target


def with_absolute_paths(pipeline: CdcPipeline) -> CdcPipeline:
    """Return the pipeline with its relative paths resolved against the current directory.

    Delta does not accept relative paths.
    """
    spec = pipeline.spec
    if "spark.hadoop.fs.defaultFS" in spec.spark.conf:
        return pipeline  # relative paths belong to that file system

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
    """Return the path, resolved against the current directory if it is relative."""
    if urlsplit(path).scheme or path.startswith("/"):
        return path
    return f"{os.getcwd()}/{path.removeprefix('./')}"
