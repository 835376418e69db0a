"""Storage: every row of every table, in an immutable base and a write-back log.

A row's newest stored content is, in this order: in the log, by the log index; else in the newest
run of the base that has it; else nowhere, and the row is its initializer's.

A file that is missing, or not as it was written, is a CorruptTableError. A lack of room is a
CapacityError, before anything has changed. The modules:

    storage.py       tables, commits, restores; the parts below together
    stored_rows.py   reads rows from log and base
    appender.py      logs dirty rows
    contents.py      the open directory: catalogue, log, base, ids; what happens when the disk fails
    catalogue.py     what is committed, replaced by rename

    row_numbers.py   id of a sparse table -> row number, which files have in its place
    id_files.py      these numbers on the disk
    sparse.py        storage as a pool of a sparse table sees it, by ids

    log.py           the segments that are not folded, and the index of their newest records
    row_index.py     row key -> position in the log
    segment.py       one segment: append, seal, read

    base.py          the runs of the base, and which record of them is a row's
    run.py           one run: records by key in files that never change
    key_index.py     which keys a file has, and where

    merges.py        folds, base merges and compactions in the background, one at a time
    fold.py          log segments become a run
    base_merge.py    several runs become fewer
    tiers.py         which runs, and when
    compaction.py    dead records leave the log
    copying.py       records from files to a file, checked
    removal.py       files that nothing names are removed

    command_files.py, command_records.py   the command log: writing it, reading it
    command_stream.py                      the same, sent to standbys

    records.py       rows as checked records
    cold.py          pages of records that are not in memory
    checking.py      one file, record by record
    backup.py        a state as files elsewhere, and a store made of them
    destinations.py  where backups are: directories and URLs
    verify.py        a whole directory: what is wrong, and which rows it affects
    taking.py        a leader's commit in place of a standby's store
    lineage.py       who has replaced whom
    format.py        magic numbers and headers: what is on disk
    trailer.py       the end of a file: its key index, checked
    files.py         every file operation, so that a test can record, tear and refuse them
"""
