"""What a mirror does with change events, as plain functions of plain values.

Nothing here reads or writes anything, and nothing knows Spark or Arrow. These modules define what is right;
whatever computes a batch has to agree with them (`tests/driver/rules`). In the order in which a record meets
them:

==================  ======================================================================================
positions           where a change stood in its source, as bytes that compare
ordering_columns    the same where columns of the row order its changes
orders              which two positions compare at all
restarts            whether the positions of a source have started again
values              change events, rows, tombstones and outcomes, as the rules below take and return them
conditions          what a filter and an expectation make of an event
merge               what becomes of a row, and of each event: deletes, truncates, TOAST, late events
moves               changes of keys: values that a row had under its former key
versions            what becomes of the versions of a row (mode scd2)
append              which events a list of events has already (mode append)
kinds               the types of a mirror's columns
keys                keys and rows as text: what tombstones, hashes and the quarantine hold
hashes              what tells two events at one position apart
conflicts           creates of rows that are there already
table               all of this for the events of a batch and a whole mirror
==================  ======================================================================================
"""
