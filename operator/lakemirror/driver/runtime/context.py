"""What the parts of a run have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.driver.checkpoint.storage import Storage
from lakemirror.driver.parse.encodings import Encoding
from lakemirror.driver.read.open import FeedOpener
from lakemirror.driver.read.secrets import Secrets
from lakemirror.driver.record.audit import AuditHistory
from lakemirror.driver.runtime.announcer import Announcer
from lakemirror.driver.runtime.threads import Threads
from lakemirror.driver.runtime.turns import Applier
from lakemirror.driver.write.target import TargetKind


@dataclass(frozen=True)
class RunContext:
    """A run that has its checkpoint.

    ``storage`` is the checkpoint, ``feeds`` opens what is read, ``make_applier`` makes who applies the
    batches of a pipeline and a query id, given what the audit tells of earlier ones; ``encoding`` is how
    records are written. A run ``once`` ends by itself when all is applied. ``secrets`` has the directory of
    each Secret that the manifest names, ``target`` is the kind of place that has the mirrors.
    """

    pipeline: CdcPipeline
    session: SparkSession
    storage: Storage
    feeds: FeedOpener
    make_applier: Callable[[CdcPipeline, str, AuditHistory], Applier]
    encoding: Encoding
    announcer: Announcer
    threads: Threads
    once: bool
    secrets: Secrets
    target: TargetKind
