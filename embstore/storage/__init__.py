"""Storage: every row of every table, in an immutable base and a write-back log (design.md, section
4).

Where a row's newest stored content is, in this order: the log, by the log index; else the base,
where the table's written bitmap has the row; else nowhere, and the row is its initializer's.

    files.py        every file operation, so that a test can record, tear and refuse them
    format.py       magic numbers, headers, page geometry: what is on disk
    records.py      one record: header, checksum, row; packed and unpacked in compiled loops
    row_index.py    row key -> position in the log
    log.py          segments of the log: append, seal, read
    base.py         a table's base rows and written bitmap
    catalogue.py    what is committed, replaced by rename
    merge.py        fold and compaction: the newest records of some segments, written elsewhere
    storage.py      the parts together: open, read, append, commit, restore
"""
