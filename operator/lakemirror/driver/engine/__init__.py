"""The engine: applies the plain changes of a batch with one Spark job, whatever the number of its tables.

It is used for mirrors in Delta tables, unless a setting asks for Spark's own plans
(`api.spark_settings.in_columns`) or records are replayed. What it does not know is applied by these plans,
table by table in the same batch: a topic in which any record teaches something new, a table whose manifest or
mirror asks for more than plain current rows, a mirror that somebody else has changed. In the order in which a
batch meets them:

====================  ====================================================================================
`engine`              What is believed of tables between batches; what of a batch is applied here
`believed`            What a planned batch says about a table, and why a table is not for the engine
`job`                 The job: two stages, with a shuffle between them
`pauses`              For how many batches it is not tried after it has failed
`daemon`              Spark's Python daemon, with what the tasks need
`saved_records`       Lines of saved Kafka records as raw records
`saved_files`         Files of them on a local disk, read by the tasks
`blocks`              The first stage: raw records become changes, divided into buckets of keys
`seen`                What blocks say about the positions of their source
`filters`             The rows that the filters of tables judge, and what becomes of their changes
`filter_columns`      Evaluates filters in Spark, between the stages
`verdicts`            Which tables are as plain as they were believed to be
`buckets`             The second stage: what becomes of a bucket
`mirror_files`        The live files of a mirror of current rows, as a task has to know them
`key_search`          The keys of a bucket, as something that finds them in columns
`bounds`              Which files and row groups may have one of the keys
`file_rows`           The rows of a data file, read by row group, with the columns and types of the table
`stored_rows`         The stored rows of a bucket's keys
`stored_ends`         The tombstones beside a mirror
`summaries`           What is known of all tombstones of a mirror
`stored_moves`        The images of rows that have changed their keys, which are beside the tombstones
`table_change`        From what a fold says to new files, hidden rows and files that are taken out
`commits`             The commits of a table: its tombstones, and then its rows
`quarantine_rows`     Bad records as rows of the quarantine
`quarantine_table`    Keeps bad records, and counts what is open, without a Spark job
`file_systems`        What the files of a mirror are read and written with
====================  ====================================================================================
"""
