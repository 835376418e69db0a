# ruff: noqa: RUF009 - the calls declare fields
"""The stats of commits, backups, scans, scrubbing and standbys. Each value is read from its source.

They are in a separate module, so that a program that shows them loads no compiled kernel.
"""

from dataclasses import dataclass

from embstore.stats import counter, flag, gauge, text, texts

_SCRUB_ERRORS_MAX = 100


@dataclass
class BackupStats:
    """Backups since the store was opened, and the running backup."""

    backups: int = counter("Backups that were made.", lambda b: b.count)
    backup_running: bool = flag("A backup is being made.", lambda b: b.is_running)
    backup_bytes: int = gauge("Of the last backup, done.", lambda b: b.bytes)
    backup_of_bytes: int = gauge("Of the last backup, all.", lambda b: b.of_bytes)
    backup_label: str | None = text("Label of the last backup that was made.", lambda b: b.label)
    backup_error: str | None = text("Why the last backup failed.", lambda b: b.error)


@dataclass
class CommitStats:
    """Commits that the store makes by itself."""

    commit_every_s: float = gauge(
        "Time from one commit to the next that the store makes by itself; 0: it makes none.",
        lambda c: c.every_s,
    )
    commit_age_s: float = gauge(
        "Time since the last commit of any kind, if commands followed it: without a command log a "
        "crash would lose these; else 0.",
        lambda c: c.age_s,
    )
    own_commits: int = counter("Commits that the store made by itself.", lambda c: c.count)
    own_commit_s: float = gauge("Time that the last of them took.", lambda c: c.seconds)
    dirty_bytes: int = gauge(
        "Rows that are newer in the cache than in the log, at most: of level two, or, where a "
        "ceiling was given, all.",
        lambda c: c.write_back.dirty_bytes,
    )
    dirty_ceiling_bytes: int = gauge(
        "Above it, calls that write become slower; 0: there is no ceiling.",
        lambda c: c.write_back.ceiling_bytes,
    )
    write_back_bytes: int = counter(
        "Rows logged so that dirty rows stay below their ceiling.",
        lambda c: c.write_back.written_bytes,
    )
    write_back_waited_s: float = counter(
        "Time in which calls logged dirty rows because they were above their ceiling.",
        lambda c: c.write_back.waited_s,
        metric="write_back_waited_seconds",
    )
    own_commit_error: str | None = text("Why the last of them failed.", lambda c: c.error)


@dataclass
class ScanStats:
    """Scans of tables since the store was opened."""

    scans_open: int = gauge("Scans that have not ended.", lambda s: len(s))
    scan_bytes: int = gauge("Memory that they hold.", lambda s: s.places.used()[1])
    scanned_rows: int = counter("Rows that scans have returned.", lambda s: s.rows)


@dataclass
class ScrubStats:
    """The background checks of files since the store was opened."""

    scrub_bytes_per_s: int = gauge(
        "Rate at which files are checked in the background; 0: they are not.",
        lambda s: s.bytes_per_s,
        metric="scrub_rate_bytes",
    )
    scrubbed_bytes: int = counter("Bytes of files checked in the background.", lambda s: s.bytes)
    scrubbed_rows: int = counter("Records checked in the background.", lambda s: s.found.rows)
    scrub_passes: int = counter("Checks of all files that have ended.", lambda s: s.found.passes)
    scrub_age_s: float = gauge(
        "Time since the last check of all files ended; 0: none has ended.", lambda s: s.age_s
    )
    scrub_problems: int = gauge(
        "Damaged files that the check found.", lambda s: len(s.found.problems)
    )
    scrub_errors: list[str] = texts(
        "The damage, with table and keys.",
        lambda s: [text for found in s.found.problems.values() for text in found][
            :_SCRUB_ERRORS_MAX
        ],
    )


@dataclass
class ReplicationStats:
    """The store's replication role."""

    role: str = text("leader, standby, or replaced: by a standby that was promoted.")
    leader: str | None = text(
        "Address of the leader that this standby follows.", lambda s: s.leader or None
    )
    connected: bool = flag("This standby is connected to its leader.", lambda s: s.is_connected)
    reason: str | None = text(
        "Why this standby is not connected, or which promotion replaced the store.",
        lambda s: s.replaced_by or s.reason or None,
    )
    commands_behind: int = gauge("Commands of the leader that this standby has not yet.")
    seconds_behind: float = gauge(
        "Time since this standby had all commands of its leader.",
        metric="seconds_behind",
    )
    commits_taken: int = gauge("Commits of the leader that this standby has taken over.")
    standbys_needed: int = gauge("Standbys that must have a command before it is acknowledged.")
    standbys: int = gauge("Standbys that are connected.")
    standbys_dropped: int = gauge("Standbys that were dropped because they were slow.")
    writes_waiting: int = gauge("Commands that wait for standbys.")


@dataclass
class ShardStats:
    """The store's shard of a cluster; without values if the store is no shard."""

    cluster: str | None = text(
        "The cluster's own name.", lambda s: None if s is None else s.shard_map.cluster
    )
    number: int | None = gauge("Its number.", lambda s: None if s is None else s.shard)
    map_version: int | None = gauge(
        "Version of the map that it has.", lambda s: None if s is None else s.shard_map.version
    )
    partitions: int | None = gauge(
        "Partitions of each table that it has.", lambda s: None if s is None else s.partitions
    )
    shards: int | None = gauge(
        "Shards of the cluster.", lambda s: None if s is None else len(s.shard_map.shards)
    )
