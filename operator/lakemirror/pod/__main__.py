"""``python3 -m lakemirror.pod [cleanup]``: the command of the driver's container.

A driver that streams exits with 0 if it was told to stop, or if a Secret or ConfigMap that it depends on has
changed. In the last case, it is restarted with the new one. A driver that runs once exits with 0 only if
everything is applied: Kubernetes takes 0 for the end of its Job, and repeats the run after anything else. The
reason for a failure is in the termination log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from lakemirror.api import ManifestError
from lakemirror.api.shown import shown
from lakemirror.driver.errors import LakemirrorError, cause_of
from lakemirror.driver.runtime import cleanup, log, runner
from lakemirror.pod.api import Api
from lakemirror.pod.executors import delete_leftovers
from lakemirror.pod.mounts import MountWatch
from lakemirror.pod.report import ConfigMapSink
from lakemirror.pod.settings import AUTHENTICATION, Pod, alone, pipeline, secret_folders, watched_folders

TERMINATION_LOG = Path("/dev/termination-log")
_log = logging.getLogger("lakemirror.pod")


class Unfinished(Exception):
    """A command that ends on its own was told to stop before its work was done."""


def main(arguments: list[str]) -> int:
    """Run the command and return the exit code."""
    log.configure()
    try:
        if arguments == ["cleanup"]:
            clean()
        else:
            drive()
    except Unfinished as stopped:
        _log.warning("%s", stopped)
        _explain(str(stopped))
        return 1
    except Exception as error:
        cause = str(error) if isinstance(error, ManifestError) else cause_of(error)
        _log.error("the driver failed: %s", cause)
        _log.log(_level_of_trace(error), "where it failed", exc_info=error)
        _explain(cause)
        return 1
    return 0


def _level_of_trace(error: Exception) -> int:
    """Return the log level of a stack trace, which is useful only for an unexpected error."""
    expected = isinstance(error, LakemirrorError | ManifestError | Py4JError | PySparkException | OSError)
    return logging.DEBUG if expected else logging.ERROR


def drive() -> None:
    """Mirror until told to stop, or until everything is applied if no more than that is asked for."""
    pod = Pod.of(os.environ)
    manifest = pipeline(pod)
    folders = secret_folders(manifest)
    watch = MountWatch([*folders.values(), *watched_folders(), AUTHENTICATION])
    once = bool(manifest.spec.trigger.available_now)
    api = Api()
    if manifest.spec.spark.conf.get("spark.master", "").startswith("k8s://"):
        delete_leftovers(api, pod.namespace, manifest.name)
    try:
        summary = runner.run(
            manifest,
            secrets=folders,
            on_event=log.LogLines(),
            sinks=[ConfigMapSink(api, pod.namespace, pod.progress, pod.uid, pod.revision)],
            stopping=None if once else watch.changed,
            grace_seconds=pod.grace_seconds,
        )
    except KeyboardInterrupt:
        if once:
            raise Unfinished(_RUN_STOPPED) from None
        _log.warning("the batch was given up, for the time to stop was over; it will be repeated")
        return
    changed = ", for a Secret or ConfigMap has changed" if watch.changed() else ""
    records = summary.counts.records
    _log.info("%s%s: %d records in %d batches", summary.status, changed, records, summary.batches)
    if once and summary.status == "stopped":
        raise Unfinished(_RUN_STOPPED)


_RUN_STOPPED = "the run was stopped before everything was applied; it is repeated"


def clean() -> None:
    """Delete the data of a deleted pipeline, as far as its deletionPolicy says."""
    manifest = alone(pipeline(Pod.of(os.environ)))
    try:
        for place in cleanup.delete_data(manifest, secrets=secret_folders(manifest)):
            _log.info("%s is deleted", place)
    except KeyboardInterrupt:
        raise Unfinished("the deletion of the data was stopped before its end; it is repeated") from None


def _explain(message: str) -> None:
    """Tell Kubernetes, and through it the status, why this ended. Kubernetes keeps 4096 bytes."""
    with contextlib.suppress(OSError):
        TERMINATION_LOG.write_bytes(shown(message).encode()[:4096].decode(errors="ignore").encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
