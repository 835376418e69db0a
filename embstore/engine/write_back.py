"""Write-back: dirty rows are logged in the background, and their number is bounded.

Where level two is full, a row can leave it only when the log has the row; and a clean stop logs all
dirty rows. Therefore dirty bytes have a **ceiling**:

    above 3/4 of it   the thread of commits logs dirty rows slice by slice, those of level two
                      first, from where it stopped the last time
    at 1/2            it stops, and syncs the log
    above it          a command that writes first logs, in its own turn, about twice the bytes that
                      the command before made dirty: each call becomes a little slower, and dirty
                      bytes exceed the ceiling by about one command's changes

The writer also begins where rows come to level two faster than they go up again, and would soon
find only dirty victims; it goes on until three quarters of it are free, or clean. So calls log
nothing. Where all rows have room in both levels, as many go down as come up, and the writer has
nothing to do. Where merges are behind, the writer waits for them as calls do (`Merges.delay_s`);
then dirty rows reach the ceiling, and calls become slower.

**The default** counts the rows of level two alone, up to the bytes that storage writes in
SECONDS, as measured in slices and syncs. Rows of level one do not count: a table that fits
there is dirty as a whole, and stays; its rows are changed again and again, and would be logged each
time. They are logged by commits and checkpoints. Therefore a store of one level has no ceiling,
unless one is given (`dirty_bytes`); that counts the rows of both levels.

Rejected: a ceiling for level one by default. Of 100,000 resident rows of a CPU, 1,500 updates
of 4,096 random rows each logged 50 times the bytes with a ceiling of half of them, where a commit
logs them once, and the median update took 2.4 times as long, or more.
"""

from contextlib import suppress
from time import monotonic

from embstore.cache import writing
from embstore.cache.pool import Pool
from embstore.cache.writing import Place
from embstore.errors import EmbstoreError
from embstore.tables.tables import Tables

SECONDS = 30
"""Seconds of writing: the ceiling, where none is given."""
_RATE, _RATE_LEAST = 256 << 20, 32 << 20
"""Bytes a second: until it is measured, and the least that is believed."""
_MEASURED_BYTES = 64 << 20
"""With fewer the fixed costs of a sync would be measured."""
_HIGH, _LOW = 3 / 4, 1 / 2
_CALLS, _DIRTY = 4, 1 / 4
_SPARSE = 4


class WriteBack:
    """Dirty rows of all pools, their ceiling, and the rows that are logged next.

    Parameters
    ----------
    dirty_bytes : the ceiling, of both levels; None: the default
    """

    def __init__(self, tables: Tables, dirty_bytes: int | None) -> None:
        has_levels = tables.host_arena is not None
        self.is_on = (has_levels or dirty_bytes is not None) and not tables.storage.read_only
        self.bytes_per_s: float = _RATE
        """Bytes a second that storage writes, syncs included."""
        self.owed_bytes = 0
        """Bytes that the last command made dirty, if they are above the ceiling."""
        self.written_bytes = 0
        """Bytes that were logged in the background or by calls for the sake of the ceiling."""
        self.waited_s = 0.0
        self._tables = tables
        self._given = dirty_bytes
        self._sunk = 0  # bytes, when the writer stopped the last time
        self._seen = 0  # dirty bytes after the last command
        self._left: list[tuple[Pool, int]] = []  # levels that this round has not finished
        self._at: Place | None = None  # of the last of them; None: at its begin
        self._measured = 0, 0.0  # bytes that were logged, in so many seconds

    # Dirty bytes. Any thread

    @property
    def ceiling_bytes(self) -> int:
        """Dirty bytes above which commands that write become slower; 0: there is no such number."""
        if not self.is_on:
            return 0
        return int(SECONDS * self.bytes_per_s) if self._given is None else self._given

    @property
    def dirty_bytes(self) -> int:
        """Bytes of dirty rows that count, at most."""
        return self._below_bytes + (0 if self._given is None else self._dirty(0))

    @property
    def commit_bytes(self) -> int:
        """Bytes of the cache that a commit may have to write, at most."""
        most = self._dirty(0) + self._below_bytes
        return most - max(self.dirty_bytes - self.ceiling_bytes, 0) if self.is_on else most

    @property
    def is_due(self) -> bool:
        """Whether the writer is to begin."""
        if not self.is_on:
            return False
        return self.dirty_bytes > _HIGH * self.ceiling_bytes or self._is_level_two_short

    @property
    def is_wanted(self) -> bool:
        """Whether the writer, once it has begun, is to go on."""
        if not self.is_on:
            return False
        return self.dirty_bytes > _LOW * self.ceiling_bytes or self._is_level_two_dirty

    @property
    def _is_level_two_short(self) -> bool:
        """Whether a few calls more may find only dirty rows to leave level two."""
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
        """Bytes of rows that level two may have: its budget, as far as level one has room for their
        keys and scores."""
        arena = self._tables.host_arena
        limit = sum(p.slots_below * p.layout.row_bytes for p in list(self._tables.pools.values()))
        return 0 if arena is None else min(arena.budget_bytes, limit)

    @property
    def _filled_bytes(self) -> int:
        """Bytes of level two that dirty rows take."""
        pools = list(self._tables.pools.values())
        return sum(pool.writer.dirty_rows(1) * pool.layout.row_bytes for pool in pools)

    @property
    def _sunk_bytes(self) -> int:
        """Bytes of rows that have gone down to level two, less those that came up again."""
        pools = [(p.counters, p.layout.row_bytes) for p in list(self._tables.pools.values())]
        return sum((of.evictions_host - of.misses_host) * size for of, size in pools)

    @property
    def _below_bytes(self) -> int:
        return self._dirty(1) if self._tables.host_arena is not None else 0

    def _dirty(self, level: int) -> int:
        pools = list(self._tables.pools.values())
        return sum(p.writer.dirty_rows(level) * p.layout.record_bytes for p in pools)

    # With the engine, but for `pay`

    def note(self) -> bool:
        """Note the bytes that a command has made dirty; return whether the writer is to begin."""
        if not self.is_on:
            return False
        seen, self._seen = self._seen, self.dirty_bytes
        is_above = self._seen > self.ceiling_bytes
        self.owed_bytes = max(self._seen - seen, writing.PIECE_BYTES) if is_above else 0
        return self.is_due

    def end_run(self) -> None:
        """Note that the writer stops."""
        self._sunk = self._sunk_bytes

    def pay(self) -> None:
        """Before a command, as a call of its own: log about twice the bytes owed, or until dirty
        bytes are below the ceiling. Rows for which the log has no room stay dirty."""
        began, written = monotonic(), 0
        wanted, self.owed_bytes = 2 * self.owed_bytes, 0
        slices = _SPARSE * wanted // writing.PIECE_BYTES  # a slice may have few dirty rows
        with suppress(EmbstoreError), self._tables.reading():
            while slices and written < wanted and self.dirty_bytes > self.ceiling_bytes:
                slices -= 1
                written += self.write()
            self._tables.storage.merges.slow_down(written)
        self._seen = self.dirty_bytes
        self.waited_s += monotonic() - began

    def write(self) -> int:
        """Log one slice of dirty rows, from where the last one ended; return how many bytes.

        Raises
        ------
        CapacityError : no room in the log. Nothing has changed.
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
        """Begin with the first slots again; level two's come first."""
        pools = list(self._tables.pools.values())
        levels = [0] if self._tables.host_arena is None else [0, 1]
        counted = levels if self._given is not None else [1]
        self._left = [(pool, level) for level in counted for pool in pools]
        return bool(self._left)

    def flush(self, pool: Pool, at: Place, table_id: int | None = None) -> tuple[Place | None, int]:
        """Do as `PoolWriter.flush_range`, measured."""
        began = monotonic()
        after, rows = pool.writer.flush_range(at, table_id)
        self._measure(rows * pool.layout.record_bytes, monotonic() - began)
        return after, rows

    # Measured

    def synced(self, seconds: float) -> None:
        """Note the time of a sync of logged rows."""
        self._measure(0, seconds)
        written, took = self._measured
        if written >= _MEASURED_BYTES:
            self.bytes_per_s = max((self.bytes_per_s + written / took) / 2, _RATE_LEAST)
            self._measured = 0, 0.0

    def _measure(self, written: int, seconds: float) -> None:
        self._measured = self._measured[0] + written, self._measured[1] + seconds
