"""Write-back: dirty rows are logged in the background, and their number is bounded.

If level two is full, a row can leave level two only after the row has been logged; and a clean stop
logs all dirty rows. Therefore dirty bytes have a **ceiling**:

    above 3/4 of it   the thread of commits logs dirty rows slice by slice: rows of level two
                      first, from the slot where it stopped the last time
    at 1/2            the thread stops, and syncs the log
    above it          before each command that writes, the store logs about twice the bytes that the
                      previous command made dirty: each call becomes a little slower, and dirty
                      bytes exceed the ceiling by about one command's changes

The writer (the thread of commits) also begins when rows move down to level two faster than they
return to level one, so that soon all victims in level two would be dirty. It continues until three
quarters of level two are free or clean. Calls themselves then log nothing. If both levels together
have space for all rows, rows return as often as they move down, and the writer has nothing to do.
If merges lag, the writer waits for them as calls do (`Merges.delay_s`); dirty rows then reach the
ceiling, and calls become slower.

**The default** ceiling counts the rows of level two alone. The default is the number of bytes that
storage writes in SECONDS, as measured in slices and syncs. Rows of level one do not count: if a
table fits into level one, all of its rows stay there and are dirty; they are changed again and
again, and would be logged each time. Commits and checkpoints log the rows of level one. Therefore a
store with one level has no ceiling unless `dirty_bytes` is given; a given ceiling counts the rows
of both levels.

Rejected: a ceiling for level one by default. In a measurement on a CPU, 100,000 rows were resident,
and the ceiling was half of their bytes. During 1,500 updates, each of 4,096 random rows, 50 times
the bytes of all rows were logged, but a commit logs them once; the median update took at least 2.4
times as long.
"""

from contextlib import suppress
from time import monotonic

from embstore.cache import writing
from embstore.cache.pool import Pool
from embstore.cache.writing import Place
from embstore.errors import EmbstoreError
from embstore.tables.tables import Tables

SECONDS = 30
"""Number of seconds of writing that the default ceiling allows."""
_RATE, _RATE_LEAST = 256 << 20, 32 << 20
"""Bytes per second that storage writes: the value before the first measurement, and the lowest
value that is used."""
_MEASURED_BYTES = 64 << 20
"""Least number of bytes per measurement: with fewer bytes, the fixed costs of a sync would
dominate."""
_HIGH, _LOW = 3 / 4, 1 / 2
_CALLS, _DIRTY = 4, 1 / 4
_SPARSE = 4


class WriteBack:
    """The dirty rows of all pools, their ceiling, and the position of the background writer.

    Parameters
    ----------
    dirty_bytes : the ceiling for both levels together; None: the default
    """

    def __init__(self, tables: Tables, dirty_bytes: int | None) -> None:
        has_levels = tables.host_arena is not None
        self.is_on = (has_levels or dirty_bytes is not None) and not tables.storage.read_only
        self.bytes_per_s: float = _RATE
        """Number of bytes per second that storage writes, syncs included."""
        self.owed_bytes = 0
        """Number of bytes that the last command made dirty, at least PIECE_BYTES; 0 unless dirty
        bytes are above the ceiling."""
        self.written_bytes = 0
        """Number of bytes that the background writer and calls have logged because of the
        ceiling."""
        self.waited_s = 0.0
        self._tables = tables
        self._given = dirty_bytes
        self._sunk = 0  # the value of `_sunk_bytes` when the writer last stopped
        self._seen = 0  # dirty bytes after the last command
        self._left: list[tuple[Pool, int]] = []  # levels that this round has not finished
        self._at: Place | None = None  # place in the last of these levels; None: its first slot
        self._measured = 0, 0.0  # bytes that were logged, and the seconds for them

    # Dirty bytes. Any thread

    @property
    def ceiling_bytes(self) -> int:
        """Dirty bytes above which commands that write become slower; 0: there is no ceiling."""
        if not self.is_on:
            return 0
        return int(SECONDS * self.bytes_per_s) if self._given is None else self._given

    @property
    def dirty_bytes(self) -> int:
        """Upper bound of the dirty bytes that count for the ceiling."""
        return self._below_bytes + (0 if self._given is None else self._dirty(0))

    @property
    def commit_bytes(self) -> int:
        """Upper bound of the cached bytes that a commit has to write."""
        most = self._dirty(0) + self._below_bytes
        return most - max(self.dirty_bytes - self.ceiling_bytes, 0) if self.is_on else most

    @property
    def is_due(self) -> bool:
        """Whether the writer should begin."""
        if not self.is_on:
            return False
        return self.dirty_bytes > _HIGH * self.ceiling_bytes or self._is_level_two_short

    @property
    def is_wanted(self) -> bool:
        """Whether the writer, once it has begun, should continue."""
        if not self.is_on:
            return False
        return self.dirty_bytes > _LOW * self.ceiling_bytes or self._is_level_two_dirty

    @property
    def _is_level_two_short(self) -> bool:
        """Whether, after a few more calls, all rows that can be evicted from level two could be
        dirty."""
        if self._tables.host_arena is None:
            return False
        return _CALLS * (self._sunk_bytes - self._sunk) > self._room_bytes - self._filled_bytes

    @property
    def _is_level_two_dirty(self) -> bool:
        return (
            self._tables.host_arena is not None and self._filled_bytes > _DIRTY * self._room_bytes
        )

    @property
    def _room_bytes(self) -> int:
        """Number of bytes of rows that level two can contain.

        This is the budget of level two, or less: level one stores the keys and scores of the rows
        of level two, and its space for them is limited.
        """
        arena = self._tables.host_arena
        limit = sum(p.slots_below * p.layout.row_bytes for p in list(self._tables.pools.values()))
        return 0 if arena is None else min(arena.budget_bytes, limit)

    @property
    def _filled_bytes(self) -> int:
        """Bytes of level two that dirty rows occupy."""
        pools = list(self._tables.pools.values())
        return sum(pool.writer.dirty_rows(1) * pool.layout.row_bytes for pool in pools)

    @property
    def _sunk_bytes(self) -> int:
        """Bytes of rows that have moved down to level two, less the bytes of rows that returned to
        level one."""
        pools = [(p.counters, p.layout.row_bytes) for p in list(self._tables.pools.values())]
        return sum((of.evictions_host - of.misses_host) * size for of, size in pools)

    @property
    def _below_bytes(self) -> int:
        return self._dirty(1) if self._tables.host_arena is not None else 0

    def _dirty(self, level: int) -> int:
        pools = list(self._tables.pools.values())
        return sum(p.writer.dirty_rows(level) * p.layout.record_bytes for p in pools)

    # Call with the engine, except `pay`

    def note(self) -> bool:
        """Record the number of bytes that a command made dirty; return whether the writer should
        begin."""
        if not self.is_on:
            return False
        seen, self._seen = self._seen, self.dirty_bytes
        is_above = self._seen > self.ceiling_bytes
        self.owed_bytes = max(self._seen - seen, writing.PIECE_BYTES) if is_above else 0
        return self.is_due

    def end_run(self) -> None:
        """Record that the writer stops."""
        self._sunk = self._sunk_bytes

    def pay(self) -> None:
        """Log dirty rows before a command, as a separate call: about twice `owed_bytes`, or fewer
        bytes if dirty bytes are then below the ceiling.

        Rows for which the log has no space stay dirty.
        """
        began, written = monotonic(), 0
        wanted, self.owed_bytes = 2 * self.owed_bytes, 0
        slices = _SPARSE * wanted // writing.PIECE_BYTES  # a slice may contain few dirty rows
        with suppress(EmbstoreError), self._tables.reading():
            while slices and written < wanted and self.dirty_bytes > self.ceiling_bytes:
                slices -= 1
                written += self.write()
            self._tables.storage.merges.slow_down(written)
        self._seen = self.dirty_bytes
        self.waited_s += monotonic() - began

    def write(self) -> int:
        """Log one slice of dirty rows, beginning where the last slice ended. Return the number of
        logged bytes.

        Raises
        ------
        CapacityError : the log has no space; nothing has changed.
        """
        while self._left or self._begin_round():
            pool, level = self._left[-1]
            if self._tables.pools.get(pool.name) is pool:
                self._at, rows = self.flush(pool, self._at or Place(level, 0))
                if self._at is None or self._at.level != level:
                    self._end_level()
                written = rows * pool.layout.record_bytes
                self.written_bytes += written
                return written
            self._end_level()
        return 0

    def _end_level(self) -> None:
        self._left.pop()
        self._at = None

    def _begin_round(self) -> bool:
        """Begin a round, which is one pass over all slots: first those of level two, then those of
        level one if they count for the ceiling. Return False if there are no pools."""
        pools = list(self._tables.pools.values())
        levels = [0] if self._tables.host_arena is None else [0, 1]
        counted = levels if self._given is not None else [1]
        self._left = [(pool, level) for level in counted for pool in pools]
        return bool(self._left)

    def flush(self, pool: Pool, at: Place, table_id: int | None = None) -> tuple[Place | None, int]:
        """Call `PoolWriter.flush_range`, and measure the time of that call."""
        began = monotonic()
        after, rows = pool.writer.flush_range(at, table_id)
        self._measure(rows * pool.layout.record_bytes, monotonic() - began)
        return after, rows

    # Measured

    def synced(self, seconds: float) -> None:
        """Record the time that a sync of logged rows took."""
        self._measure(0, seconds)
        written, took = self._measured
        if written >= _MEASURED_BYTES:
            self.bytes_per_s = max((self.bytes_per_s + written / took) / 2, _RATE_LEAST)
            self._measured = 0, 0.0

    def _measure(self, written: int, seconds: float) -> None:
        self._measured = self._measured[0] + written, self._measured[1] + seconds
