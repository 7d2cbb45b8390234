"""The engine: what a task of a batch's job does for a bucket of keys of one table.

====================  ====================================================================================
`mirror_files`        The live files of a mirror of current rows, as a task has to know them
`key_search`          The keys of a bucket, as something that finds them in columns
`file_rows`           The rows of a data file, read by row group, with the columns and types of the table
`stored_rows`         The stored rows of a bucket's keys
`table_change`        From what a fold says to new files, hidden rows and files that are taken out
====================  ====================================================================================
"""
