"""Writes commits to Delta tables without Delta's own transaction, for `lakemirror.driver.engine`.

A commit is made of new Parquet files, deletion vectors, and one entry of the table's log, which is put only
if it is absent. Everything that decides what is written is pure; the edges are `stores`, `java_store`,
`s3_files` and `java_s3`, and `log_state` reads through them.

=================  =====================================================================================
`features`         Which tables may be written in this way. All others are left to Delta
`schema`           A table's columns as its metadata has them, and the Arrow types of their values
`actions`          The actions of a log entry as values
`snapshot`         What the log says about a table at a version, and at the next one
`partitions`       Texts of partition values, and folders
`statistics`       The statistics of a file, which are valid for every reader
`data_files`       Arrow tables as Parquet files
`vectors`          Deletion vectors
`transaction`      From rows to add and rows to hide to files and actions
`entry`            A log entry as bytes, and its commit
`attempt`          From files and actions to a commit, or to no trace of it
`log_files`        Which files of a log make its newest version
`log_checkpoints`  The actions in a checkpoint, of whatever kind
`log_state`        The state of a table, read from its log or brought forward
`checkpointing`    The checkpoint of a version, as a file and in the log
`retention`        How long files stay that a table does not need any more
`checksum`         The checksum file of a version
`stores`           Where entries and files are put; on a local disk
`java_store`       The log through Delta's own log store, for every file system that Delta knows
`s3_access`        How a bucket of S3 is reached, from the settings of Hadoop's client
`java_s3`          These settings and the keys, from Hadoop's client
`s3_files`         The files of tables in a bucket, without Hadoop
`exact_json`       JSON in which numbers stay as they are written
=================  =====================================================================================

The formats are those of Delta's PROTOCOL.md. Where Delta 4.4 does more than the protocol asks, it is said.
"""
