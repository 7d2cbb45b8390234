"""What a mirror does with plain change events, over Arrow arrays; the rest is parted off for the rules.

`lakemirror.driver.rules` says what is right, record by record. These modules make the same of whole blocks,
for the plain cases of Debezium's JSON in mirrors of current rows; `tests/driver/columns` holds them against
the rules. They are pure functions: nothing here knows Spark or Delta, or reads or writes anything. The tasks
of `lakemirror.driver.engine` call them.

In the order in which a block meets them:

============  ============================================================================================
facts         what is known of a table and of the schema of its records
raw_records   records as they were read: where each was, and the texts of its key and its value
payloads      JSON without its schema, within the limits of the rules
structs       what is read of a record: types for `msgspec`, made for a table
wires         the values of a column: as they are written, and as an array
places        where changes stand in their source: sequences of 26 bytes
decode        all of this for a block of records: plain changes, and the numbers of those that are odd
changes       plain changes in columns, and the same as events of the rules
kinds         the types of columns in Arrow
stored        rows and tombstones of a mirror in columns, and as the rules have them
sequences     sequences and origins that compare, and the order of changes
key_codes     numbers that stand for keys
masks         truth values of many changes
alike         which values are the same
odd           records that are not plain, one by one
fold          what changes make of the rows of their keys, and what became of each change
============  ============================================================================================

What does not compare with what a row has (`rules.orders.waiting`), creates of rows that are there
(`rules.conflicts`), filters and expectations are the caller's, as they are in `rules.batch`.
"""
