"""What the parts of a run share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from lakemirror.api import CdcPipeline
from lakemirror.driver.checkpoint.storage import Storage
from lakemirror.driver.parse.encodings import Encoding
from lakemirror.driver.read.open import FeedOpener
from lakemirror.driver.read.secrets import Secrets
from lakemirror.driver.record.history import AuditHistory
from lakemirror.driver.runtime.announcer import Announcer
from lakemirror.driver.runtime.threads import Threads
from lakemirror.driver.runtime.turns import Applier
from lakemirror.driver.write.target import TargetKind


@dataclass(frozen=True)
class RunContext:
    """A run that owns its checkpoint.

    ``storage`` is the checkpoint, and ``feeds`` opens what is read. ``make_applier`` creates the applier of a
    pipeline's batches for a query id, given what the audit says about earlier batches. ``encoding`` is how
    records are encoded. A run with ``once`` ends on its own when everything is applied. ``secrets`` contains
    the directory of each Secret that the manifest names. ``target`` is the kind of target that contains the
    mirrors.
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
