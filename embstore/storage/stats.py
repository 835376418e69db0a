# ruff: noqa: RUF009 - the calls declare fields
"""The stats of storage. They are in a separate module, so that a program that shows them loads no
kernel."""

from dataclasses import dataclass

from embstore.stats import counter, flag, gauge, text, texts


@dataclass
class StorageStats:
    """Log, base and merges. Counts begin when the store is opened."""

    commit: int = gauge("Number of the last commit.", lambda s: s.catalogue.head.commit)
    checkpoints: list[str] = texts(
        "Kept checkpoints, oldest first.", lambda s: [c.label for c in s.catalogue.checkpoints]
    )
    checkpoints_protected: list[str] = texts(
        "Those of them that newer ones do not push out.",
        lambda s: [c.label for c in s.catalogue.checkpoints if c.protected],
    )
    checkpoints_bytes: int = gauge(
        "Files that wait for kept checkpoints: newer than the oldest one, and so not merged with "
        "older rows; or of dropped tables.",
        lambda s: s.catalogue.waiting_bytes,
    )
    log_bytes: int = gauge("Size of the log.", lambda s: s.log.bytes)
    log_segments: int = gauge("Files of the log.", lambda s: len(s.log.maps))
    log_rows: int = gauge("Rows whose newest content is in the log.", lambda s: s.log.index.size)
    log_records: int = gauge("Records in the log, overwritten ones too.", lambda s: s.log.records)
    log_index_bytes: int = gauge("Memory of the log's index.", lambda s: s.log.index.memory_bytes)
    bytes_read: int = counter(
        "Rows read from log and base.", lambda s: s.rows.bytes_read, metric="storage_read_bytes"
    )
    bytes_written: int = counter(
        "Rows appended to the log.",
        lambda s: s.appender.bytes_written,
        metric="storage_written_bytes",
    )
    base_bytes: int = gauge("Size of the base.", lambda s: s.base.bytes)
    base_runs: int = gauge("Runs of the base, which a lookup asks.", lambda s: len(s.base.runs))
    base_files: int = gauge("Files of the base.", lambda s: len(s.base.maps))
    ids: int = gauge(
        "Ids of sparse tables that have row numbers: of which a row was logged.",
        lambda s: s.ids.count,
    )
    ids_bytes: int = gauge(
        "Size of the files of these ids.", lambda s: sum(e.bytes for e in s.catalogue.ids)
    )
    ids_files: int = gauge("Files of these ids.", lambda s: len(s.catalogue.ids))
    ids_memory_bytes: int = gauge("Memory of these ids.", lambda s: s.ids.memory_bytes)
    folds: int = counter("Folds: log segments made a run of the base.", lambda s: s.merges.folds)
    base_merges: int = counter("Merges of runs of the base.", lambda s: s.merges.base_merges)
    compactions: int = counter("Merges within the log.", lambda s: s.merges.compactions)
    merge_running: bool = flag("A merge runs in the background.", lambda s: s.merges.running)
    merge_waited_s: float = counter(
        "Time that updates waited, a little each, because merges were behind.",
        lambda s: s.merges.waited_s,
        metric="merge_waited_seconds",
    )
    merge_failures: int = counter("Merges that failed.", lambda s: s.merges.failures)
    merge_error: str | None = text("Why the last merge failed.", lambda s: s.merges.error)
