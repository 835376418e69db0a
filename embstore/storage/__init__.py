"""Storage: every row of every table, in an immutable base and a write-back log.

Where a row's newest stored content is, in this order: the log, by the log index; else the base,
where the table's written bitmap has the row; else nowhere, and the row is its initializer's. The
modules:

    storage.py       the verbs that the cache needs: read, reserve, append, commit, restore
    merges.py        folds and compactions in the background: when, what, and how they end
    merge.py         one of them: the newest records of some segments, written elsewhere
    contents.py      the open directory: catalogue, log, bases; and what happens when the disk fails
    opening.py       whose directory it is, and what it last committed
    catalogue.py     what is committed, replaced by rename
    log.py           the segments that are not folded, and the index of their newest records
    row_index.py     row key -> position in the log
    segment.py       one segment: append, seal, read
    write_behind.py  one piece is written while the next is made
    base.py          a table's base rows and written bitmap
    format.py        magic numbers, headers, page geometry: what is on disk
    files.py         every file operation, so that a test can record, tear and refuse them
"""
