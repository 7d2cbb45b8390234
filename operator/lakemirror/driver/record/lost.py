"""Goes on without files of the audit and the quarantine that are gone, and says what is lost with them.

Rules of a bucket may delete old objects, also those of tables. A table can then not be read or changed, until
its log says that they are gone. If files of the log itself are gone, the table is set aside, and a new one
begins.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from lakemirror.driver.checkpoint.storage import FileCutOff, file_system, open_storage
from lakemirror.driver.errors import cause_of, stops_pipeline
from lakemirror.driver.record import audit, quarantine
from lakemirror.driver.tables import delta
from lakemirror.driver.write.log import Lost, forget_lost

ASIDE: Final = "damaged"
"""The folder of the checkpoint for tables that are set aside."""
_BROKEN: Final = re.compile(
    r"DELTA_TRUNCATED_TRANSACTION_LOG|DELTA_LOG_FILE_NOT_FOUND|DELTA_VERSIONS_NOT_CONTIGUOUS"
    r"|DELTA_STATE_RECOVER_ERROR|DELTA_MISSING_PART_FILES"
)
_RULE: Final = (
    "No rule of the bucket may delete what lies in the checkpoint (docs/object-stores.md, What a bucket must "
    "not do)"
)


def note_lost_files(spark: SparkSession, checkpoint: str, warn: Callable[[str], None]) -> None:
    """Look once for files of both tables, and report those that are gone.

    Only the owner of the checkpoint may call this. What cannot be found out is reported, and stops nothing.
    """
    for path, lost_rows in (
        (audit.path(checkpoint), _of_audit),
        (quarantine.path(checkpoint), _of_quarantine),
    ):
        try:
            lost = forget_lost(spark, path)
        except Exception as error:
            if stops_pipeline(error, spark):
                raise
            if _BROKEN.search(str(error)):
                warn(_set_aside(spark, checkpoint, path))
            else:
                warn(f"{path} cannot be read: {cause_of(error)}. {_RULE}")
            continue
        if lost is not None:
            warn(lost_rows(path, lost))
    _warn_of_no_quarantine(spark, checkpoint, warn)


def _set_aside(spark: SparkSession, checkpoint: str, path: str) -> str:
    """Move a table whose log is broken to another folder, and return what to tell about it."""
    files, table = file_system(spark, path)
    name = f"{table.getName()}-{uuid.uuid4().hex[:8]}"
    _, aside = file_system(spark, f"{checkpoint.rstrip('/')}/{ASIDE}/{name}")
    files.mkdirs(aside.getParent())
    if not files.rename(table, aside):
        return f"{path} cannot be read, because files of its log are gone, and could not be moved. {_RULE}"
    return (
        f"{path} cannot be read, because files of its log are gone. It is now {aside}, and a new one begins. "
        "Totals, positions and targets are kept elsewhere; records in a quarantine that were not applied yet "
        f"are lost, unless the files are restored. {_RULE}"
    )


def _of_audit(path: str, lost: Lost) -> str:
    return (
        f"{_gone(path, lost)}: reports and consistent reads do without what these batches did; totals, "
        f"positions and targets are kept elsewhere. {_RULE}"
    )


def _of_quarantine(path: str, lost: Lost) -> str:
    return (
        f"{_gone(path, lost)}: those among them that were not applied yet are lost. Compare the tables with "
        f"their source (`lakemirror verify`), or reload them. {_RULE}"
    )


def _gone(path: str, lost: Lost) -> str:
    rows = "an unknown number of" if lost.rows is None else str(lost.rows)
    return f"{lost.files} file(s) of {path} are gone, with {rows} row(s)"


def _warn_of_no_quarantine(spark: SparkSession, checkpoint: str, warn: Callable[[str], None]) -> None:
    """Warn if the last run has reported open records, and there is no quarantine."""
    path = quarantine.path(checkpoint)
    try:
        totals = json.loads(open_storage(checkpoint, spark).read_text("progress.json"))["totals"]
        records = int(totals.get("quarantinedOpen", 0)) + int(totals.get("held", 0))
        if not records or delta.is_table(spark, path):
            return
    except (FileNotFoundError, FileCutOff, ValueError, TypeError, KeyError, AttributeError):
        return
    except Exception as error:
        if stops_pipeline(error, spark):
            raise
        return
    warn(
        f"{path} is gone, with {records} record(s) that were not applied yet: they are lost. Restore it from "
        f"a copy, or compare the tables with their source (`lakemirror verify`) and reload them. {_RULE}"
    )
