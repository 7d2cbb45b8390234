"""What a mirror does with change events, as plain functions of plain values.

Nothing here reads or writes anything, and nothing knows Spark or Arrow. These modules define what is right;
whatever computes a batch has to agree with them (`tests/driver/rules`). In the order in which a record meets
them:

==================  ======================================================================================
envelopes           what a record says: Debezium's, flat, Maxwell's and custom records, AWS DMS
positions           where a change stood in its source, as bytes that compare
ordering_columns    the same where columns of the row order its changes
orders              which two positions compare at all
restarts            whether the positions of a source have started again
schemas, avro       the columns that a schema declares, of Kafka Connect or Avro
kinds               the types of a mirror's columns
types               a value on the wire, by its field: every type of Debezium and Connect
untyped, texts      a value of a record without a schema, by the type of its column
members             objects of JSON that have a member twice
numbers, moments    decimals, floats, dates and times, exactly or not at all
conversions         a value of one type as one of another
rows                a whole row, or why its record cannot be applied
row_keys            which row it is: its key, from the record's key or from the row
inference           types from values, where nothing else tells them
drift               columns that change: widened, added, stored as text, or refused
lives               columns that are added with a default, or dropped and added again
frozen              what the values of the rules are: named fields that do not change
values, table       change events, rows, tombstones and outcomes; what the rules know of a table
conditions          what a filter and an expectation make of an event
merge               what becomes of a row: the events of a key in any order, a page for each step (anchors,
                    truncates, states, tombstones, stored, columns, soft_deletes, outcomes)
moves               changes of keys: values that a row had under its former key
versions            what becomes of the versions of a row (mode scd2)
append              which events a list of events has already (mode append)
keys                keys and rows as text: what tombstones, hashes and the quarantine hold
hashes              what tells two events at one position apart
conflicts           creates of rows that are there already
batch               all of this for the events of a batch and a whole mirror
==================  ======================================================================================
"""
