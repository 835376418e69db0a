"""Storage: every row of every table, in an immutable base and a write-back log.

A row's newest stored content is, in this order: in the log, by the log index; else in the base,
where the table's written bitmap has the row; else nowhere, and the row is its initializer's.

A file that is missing, or not as it was written, is a CorruptTableError. A lack of room is a
CapacityError, before anything has changed. The modules:

    storage.py       tables, commits, restores; the parts below together
    stored_rows.py   reads rows from log and base
    appender.py      logs dirty rows
    merges.py        folds and compactions in the background: when, what, and how
    contents.py      the open directory: catalogue, log, bases; what happens when the disk fails
    catalogue.py     what is committed, replaced by rename
    log.py           the segments that are not folded, and the index of their newest records
    row_index.py     row key -> position in the log
    segment.py       one segment: append, seal, read
    base.py          a table's base rows
    written.py       which rows a base has
    records.py       rows as checked records
    cold.py          pages of records that are not in memory
    command_records.py, command_files.py, command_stream.py    the command log
    taking.py        a leader's commit in place of a standby's store
    lineage.py       who has replaced whom
    format.py        magic numbers, headers, page geometry: what is on disk
    files.py         every file operation, so that a test can record, tear and refuse them
"""
