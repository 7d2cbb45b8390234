"""Records the files of a batch beside a mirror, before its rows are written.

See `lakemirror.driver.tables.applied_files`.
"""

from __future__ import annotations

from delta import DeltaTable
from pyspark.sql import functions as F

from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.tables.applied_files import COLUMNS, AppliedFiles
from lakemirror.driver.write.log import append
from lakemirror.driver.write.writer import Transaction


def mark_files(table: MirroredTable, transaction: Transaction) -> None:
    """Record the batch's files, which count once its rows are committed.

    Does nothing for a batch without files.
    """
    batch = transaction.batch
    files = [each for each in batch.files if each.whole and each.table in (None, str(table.name))]
    if not files:
        return
    known = AppliedFiles(table.spark, table.mirror)
    _forget_uncommitted(table, known, transaction)
    rows = [(each.sha256, each.name, transaction.app_id, batch.batch_id, each.start) for each in files]
    columns = [name.split(" ")[0] for name in COLUMNS.split(", ")]
    frame = table.spark.createDataFrame(rows, COLUMNS.replace("at TIMESTAMP, ", ""))
    append(frame.withColumn("at", F.current_timestamp()).select(*columns), known.path)


def _forget_uncommitted(table: MirroredTable, known: AppliedFiles, transaction: Transaction) -> None:
    """Delete the records of batches that were not committed.

    Otherwise, this batch's commit would vouch for them.
    """
    rows = known.frame()
    if rows is None:
        return
    committed = table.mirror.applied(transaction.app_id)
    newest = -1 if committed is None else committed
    void = (F.col("app_id") == transaction.app_id) & (F.col("batch_id") > newest)
    if not rows.where(void).isEmpty():
        DeltaTable.forPath(table.spark, known.path).delete(void)
