"""Storage: every row of every table, in an immutable base and a write-back log.

A row's newest stored content is looked up in this order: in the log, by the log index; then in the
newest run of the base that contains the row. A row that is in neither log nor base has the value
that the initializer of its table computes.

A missing or damaged file raises a CorruptTableError. If the disk is full, a CapacityError is raised
before anything has changed. The modules:

    storage.py       tables, commits, restores; joins the modules below
    stored_rows.py   reads rows from log and base
    appender.py      logs dirty rows
    contents.py      the open directory: catalogue, log, base, ids; failures of the disk
    catalogue.py     the committed state, replaced by rename

    row_numbers.py   id of a sparse table -> row number; files contain the row numbers
    id_files.py      the row numbers and their ids on the disk
    sparse.py        storage as a pool of a sparse table sees it, by ids

    log.py           the segments that are not folded, and the index of their newest records
    row_index.py     row key -> position in the log
    segment.py       one segment: append, seal, read

    base.py          the runs of the base, and the lookup of a row's record
    run.py           one run: records by key in files that never change
    key_index.py     the keys of a file, and the offsets of their records

    merges.py        folds, base merges and compactions in the background, one at a time
    fold.py          log segments become a run
    base_merge.py    several runs become fewer
    tiers.py         the choice of runs to merge
    compaction.py    dead records leave the log
    copying.py       records from files to a file, checked
    removal.py       removal of unnamed files

    command_files.py, command_records.py   the command log: writing, reading
    command_stream.py                      the command log, sent to standbys

    records.py       rows as checked records
    cold.py          pages of records that are not in memory
    checking.py      one file, record by record
    backup.py        copies of a state at other destinations, and stores made of such copies
    destinations.py  destinations of backups: directories and URLs
    verify.py        a whole directory: damage, and the rows that it affects
    taking.py        replaces a standby's store by a commit of its leader
    lineage.py       promotions of standbys
    lives.py         a record of which process numbered which commands
    format.py        magic numbers and headers of the files
    trailer.py       the end of a file: its key index, checked
    files.py         every file operation; tests record, tear and refuse operations here
"""
