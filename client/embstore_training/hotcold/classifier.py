"""Finds hot samples: samples all of whose ids, in all columns, are rows of the hot set.

A table's hot keys are a bitmap, with one bit per row up to the largest hot key; larger ids are
cold. If such a bitmap would be large and nearly empty (as for keys that are hashes), the keys are
looked up by hash instead. Searching the sorted keys would take a tenth of the extra memory, and ten
times as long. In both forms an id stays an integer: FAE (Adnan et al., VLDB 2022) stores hot slots
as float32, which is exact only up to 2**24.

Columns are checked one after the other, and in each column only the samples that are still hot are
checked. The range of ids is nevertheless checked in all samples, so that a cold sample cannot hide
a mistake. If the number of rows of a table is not given, ids of 2**63 or more, which are below 0 as
int64, are refused: they could be sparse keys, but a mistake is more likely.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from embstore.arrays import EMPTY_KEY, Keys
from embstore.errors import InvalidArgumentError
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import spatial_hash
from embstore_training.hotcold.ragged import Ragged

Chunk = Mapping[str, NDArray[Any] | Ragged]
"""Samples in columns, by name: arrays or `Ragged`, with an equal number of samples."""

Flags = NDArray[np.bool_]

_BITMAP_BYTES_MAX = 64 << 20
"""A bitmap can always have this many bytes (2**29 rows). A larger bitmap is used if it is at most
eight times as large as its keys; else a lookup by hash takes less memory."""

_ROWS_UNKNOWN = 1 << 63

_PIECE_SAMPLES = 1 << 14
"""The number of samples that pass all columns together: few enough that they stay in the CPU's
cache between the columns, and that a large chunk needs no large intermediate arrays."""


class KeyBitmap:
    """Hot keys as one bit per row, key 0 in the lowest bit of the first byte."""

    def __init__(self, keys: Keys) -> None:
        """Set the bits of `keys`, which are ascending and >= 0."""
        # An extra byte, always 0, represents all larger ids: `contain` clips larger ids to this
        # byte.
        self._bits = np.zeros(_bitmap_bytes(keys), np.uint8)
        self.memory_bytes = self._bits.nbytes
        np.bitwise_or.at(self._bits, keys >> 3, np.left_shift(1, keys & 7).astype(np.uint8))

    def contain(self, ids: Keys) -> Flags:
        """Return a mask in the shape of `ids`: which of the ids are hot keys."""
        bytes_of = (ids.view(np.uint64) >> np.uint64(3)).view(np.int64)
        found = self._bits.take(bytes_of, mode="clip") >> (ids.astype(np.uint8) & 7)
        return (found & 1).view(np.bool_)


class HashedKeys:
    """Hot keys in the order of their hash, and the start of each bucket of hashes."""

    def __init__(self, keys: Keys) -> None:
        """Order `keys`, of which there is at least one. A key takes 24 to 40 bytes of memory."""
        bits = (2 * len(keys)).bit_length()  # Two to four buckets per key.
        self._shift = np.uint64(64 - bits)
        buckets = self._buckets(keys)
        counts = np.bincount(buckets, minlength=1 << bits)
        self._starts = np.cumsum(counts) - counts
        self._longest = int(counts.max())
        padding = np.full(self._longest, EMPTY_KEY)  # After the last bucket, which may be empty.
        self._keys = np.concatenate([keys[np.argsort(buckets)], padding])
        self.memory_bytes = self._keys.nbytes + self._starts.nbytes

    def contain(self, ids: Keys) -> Flags:
        """Return a mask in the shape of `ids`: which of the ids are hot keys. The caller passes no
        id -1."""
        flat = ids.ravel()
        places = self._starts.take(self._buckets(flat))
        found: Flags = self._keys.take(places) == flat
        # The search runs over the end of a short bucket, into buckets that cannot have the id.
        left = np.flatnonzero(~found)
        places, missed = places[left], flat[left]
        for _ in range(1, self._longest):
            places += 1
            found[left] |= self._keys.take(places) == missed
        return found.reshape(ids.shape)

    def _buckets(self, keys: Keys) -> NDArray[np.int64]:
        return (spatial_hash("", keys) >> self._shift).astype(np.int64)


def _bitmap_bytes(keys: Keys) -> int:
    return (int(keys[-1]) >> 3) + 2 if len(keys) else 1


HotKeys = KeyBitmap | HashedKeys


def hot_keys(keys: Keys) -> HotKeys:
    """Return ascending hot keys as a bitmap or in hashed order, whichever suits them."""
    is_short = not len(keys) or keys[0] >= 0
    fits = is_short and _bitmap_bytes(keys) <= max(_BITMAP_BYTES_MAX, 8 * keys.nbytes)
    return KeyBitmap(keys) if fits else HashedKeys(keys)


class Classifier:
    """Finds the hot samples of a chunk. It never changes, so threads can share it."""

    def __init__(
        self,
        hot_set: HotSet | Mapping[str, ArrayLike],
        columns: Mapping[str, str],
        *,
        rows: Mapping[str, int] | None = None,
    ) -> None:
        """Prepare the hot keys of the tables in `columns`.

        Parameters
        ----------
        columns : the table of each column of ids; several columns can have the same table
        rows : `Table.rows` by table. It is needed for tables of sparse keys, and for tables whose
            ids are to be checked against the number of rows; for a table that is not named, 2**63
            is used

        Raises
        ------
        InvalidArgumentError : there are no columns; the hot set lacks a table; rows are not a
            number; or a hot key is beyond the rows of its table.
        """
        hot_set = HotSet.of(hot_set)
        if not columns:
            raise InvalidArgumentError("expected at least one column of ids, found none")
        self._columns = dict(columns)
        self._rows: dict[str, int] = {}
        self._keys: dict[str, HotKeys] = {}
        for column, table in self._columns.items():
            if table not in hot_set.tables:
                raise InvalidArgumentError(
                    f"column {column!r}: expected a table of the hot set, one of "
                    f"{sorted(hot_set.tables)}, found {table!r}"
                )
            if table not in self._keys:
                keys = hot_set.tables[table]
                self._rows[table] = _checked_rows(table, keys, (rows or {}).get(table))
                self._keys[table] = hot_keys(keys)

    @property
    def columns(self) -> dict[str, str]:
        """The table of each column of ids."""
        return dict(self._columns)

    @property
    def memory_bytes(self) -> int:
        """Size of the hot keys in memory, in bytes."""
        return sum(keys.memory_bytes for keys in self._keys.values())

    def hot(self, chunk: Chunk) -> Flags:
        """Return a mask of the hot samples, (n,) bool.

        Parameters
        ----------
        chunk : columns of samples. A column of ids is (n,), or (n, k) or `Ragged` if a sample has
            several ids. In a hot sample, all ids are hot; a sample without ids is hot. Ids are
            integers that fit int64. Columns that do not contain ids are ignored

        Raises
        ------
        InvalidArgumentError : a column is missing, or has another shape, dtype or length; or an id
            is negative or beyond its table. The message names column, table and id.
        """
        ids = {column: self._ids(chunk, column) for column in self._columns}
        first, count = next((column, len(values)) for column, values in ids.items())
        for column, values in ids.items():
            if len(values) != count:
                raise InvalidArgumentError(
                    f"expected columns of one length, found {count} samples in {first!r} and "
                    f"{len(values)} in {column!r}"
                )
        hot = np.ones(count, np.bool_)
        for begin in range(0, count, _PIECE_SAMPLES):
            end = begin + _PIECE_SAMPLES
            for column, values in ids.items():
                self._keep_hot(hot[begin:end], column, values[begin:end])
        return hot

    def _ids(self, chunk: Chunk, column: str) -> NDArray[Any] | Ragged:
        values = chunk.get(column)
        where = self._where(column)
        if values is None:
            raise InvalidArgumentError(f"{where}: not in the chunk, which has {sorted(chunk)}")
        ids: Any = values.values if isinstance(values, Ragged) else values
        if not isinstance(ids, np.ndarray) or ids.ndim not in (1, 2) or ids.dtype.kind not in "iu":
            found = getattr(ids, "dtype", type(ids).__name__)
            raise InvalidArgumentError(
                f"{where}: expected ids of shape (n,) or (n, k) and dtype int64, found "
                f"{found} {getattr(ids, 'shape', '')}"
            )
        return values

    def _keep_hot(self, hot: Flags, column: str, values: NDArray[Any] | Ragged) -> None:
        """Clear `hot` for samples that have an id that is not hot in a column."""
        keys = self._keys[self._columns[column]]
        if isinstance(values, Ragged):
            ids = np.asarray(values.values, np.int64)
            self._check_range(column, ids)
            cold_before = np.concatenate([[0], np.cumsum(~keys.contain(ids))])[values.offsets]
            hot &= cold_before[1:] == cold_before[:-1]
            return
        ids = np.asarray(values, np.int64)
        self._check_range(column, ids)
        still = np.flatnonzero(hot)
        if 2 * len(still) > len(hot):  # Gathering the hot samples would cost more than it saves.
            hot &= _all_of_sample(keys.contain(ids))
        else:
            hot[still] = _all_of_sample(keys.contain(ids[still]))

    def _check_range(self, column: str, ids: Keys) -> None:
        if not ids.size:
            return
        rows, unsigned = self._rows[self._columns[column]], ids.view(np.uint64)
        if int(unsigned.max()) >= rows:
            first = ids.flat[np.argmax(unsigned >= np.uint64(rows))]
            raise InvalidArgumentError(
                f"{self._where(column)}: expected ids >= 0{_below(rows, ' and ')}, found {first}"
                f"{_of_sparse(rows)}"
            )

    def _where(self, column: str) -> str:
        return f"column {column!r} of table {self._columns[column]!r}"


def _all_of_sample(found: Flags) -> Flags:
    """Return a mask of the samples all of whose ids were found.

    The array is transposed first: a few passes over all samples take a tenth of the time of many
    passes over a few ids each.
    """
    if found.ndim == 1:
        return found
    hot: Flags = np.logical_and.reduce(np.ascontiguousarray(found.T), axis=0)
    return hot


def _below(rows: int, joint: str = "") -> str:
    """Return the bound of keys as text for an error message; "" if the bound is unknown."""
    return "" if rows == _ROWS_UNKNOWN else f"{joint}< {rows}, the rows of the table"


def _of_sparse(rows: int) -> str:
    """Return the end of an error message if a table's number of rows was not given, else ""."""
    return "; rows=... says that a table is of sparse keys" if rows == _ROWS_UNKNOWN else ""


def _checked_rows(table: str, keys: Keys, rows: Any) -> int:
    """Return the number of rows of a table, checked against the table's hot keys. If `rows` is
    None, the number is unknown."""
    if rows is None:
        rows = _ROWS_UNKNOWN
    if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 0:
        raise InvalidArgumentError(f"table {table!r}: expected rows >= 0, found {rows!r}")
    bound = int(rows)
    if len(keys) and (high := int(keys.view(np.uint64).max())) >= bound:
        raise InvalidArgumentError(
            f"table {table!r}: expected hot keys {_below(bound) or '>= 0'}, found "
            f"{high}{_of_sparse(bound)}"
        )
    return bound
