"""What a record says: a change of a row, a truncate, no change of a row, or why it cannot be applied.

An envelope is a module with a function ``classify``: `debezium`, `flat` (what Debezium's
ExtractNewRecordState leaves), `maxwell` and `custom` (the manifest says where the parts are; AWS DMS is one
of these). `records` has what they share, `own_records` tells Debezium's own records from rows.
"""
