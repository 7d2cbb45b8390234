"""What a mirror does with change events, as plain functions of plain values.

Nothing here reads or writes anything, and nothing knows Spark or Arrow. These modules define what is right;
whatever computes a batch has to agree with them (`tests/driver/rules`). In the order in which a record meets
them:

==================  ======================================================================================
positions           where a change stood in its source, as bytes that compare
ordering_columns    the same where columns of the row order its changes
orders              which two positions compare at all
restarts            whether the positions of a source have started again
==================  ======================================================================================
"""
