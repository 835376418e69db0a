"""Arguments and results of a device's methods: batches, updates, findings.

base.py defines where arrays are, and when results are known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import KEY_MASK, Keys, Rows

T = TypeVar("T")
Answer = Callable[[], T]
Array = Any
"""An array in the device's memory."""
Slots = NDArray[np.int64]
Flags = NDArray[np.uint8]
Counts = NDArray[np.int64]
"""The number of accesses that each position of a call stands for."""


@dataclass
class Findings:
    """The results of kernels about a batch, valid once the batch is synchronized."""

    outside: int = -1  # first position whose key is outside its table
    missing: int = 0  # unique keys without a slot, when the batch was probed
    large: int = -1  # the lowest id whose scaled sum has an element of `arithmetic.LARGE` or more


@dataclass
class Batch:
    """The unique row keys of a call, and its positions, which `bounds` cut into segments."""

    unique_keys: Array  # (u,) int64; (n,) before the batch is synchronized
    inverse: Array  # (n,) int32
    bounds: NDArray[np.int64]  # (segments + 1,), on the host
    found: Findings = field(default_factory=Findings)
    is_known: bool = True
    """Whether `found` contains the results of all kernels that were launched for the batch."""
    is_distinct: bool = False
    """Whether position p has id p."""
    is_grouped: bool = False
    """Whether the batch is a result of `DeviceKeys.group`, and has no `inverse`."""

    @property
    def position_count(self) -> int:
        """The number of keys of the call, repeats included."""
        return int(self.bounds[-1])


@dataclass(frozen=True)
class Gradients:
    """The gradients of one segment. Position i, counted from the segment's start, receives

        rows[i]                              if `source` is None (one gradient per key), else
        rows[source[i]]                      if `coefficients` is None       (bags, sum)
        rows[source[i]] / coefficients[i]    with `divide`                   (bags, mean)
        coefficients[i] * rows[source[i]]    otherwise                       (bags, weights)

    Each product or quotient is rounded once to fp32 (contract.md, rule 8).
    """

    rows: Rows  # (n or bags, dim)
    source: NDArray[np.int32] | None = None
    coefficients: NDArray[np.float32] | None = None
    divide: bool = False


@dataclass
class TableParameters:
    """Parameters of all tables of a pool, by the table's number in the pool (`RowKeys.number`).

    scalars : (tables, 8) float32, the `embstore.arithmetic.update_scalars` of this command
    initializer_kinds : (tables,) int8, 0 constant, 1 uniform, 2 normal
    initializer_values : (tables, 2) float32: (value, 0), (low, high - low), (mean, std)
    seeds : (tables,) uint64
    initial_state : (tables,) float32, initial value of every state element
    """

    scalars: NDArray[np.float32]
    initializer_kinds: NDArray[np.int8]
    initializer_values: NDArray[np.float32]
    seeds: NDArray[np.uint64]
    initial_state: NDArray[np.float32]
    key_mask: int = KEY_MASK
    """The bits of a row key that contain the key; the other bits contain the table's number."""


@dataclass
class IndexArrays:
    """A two-choice bucket index, key -> slot: `bucket_keys` (buckets, width), EMPTY_KEY where free.

    A key is in one of its two buckets. If these buckets were full at its insertion, it is in the
    stash, whose first `stash_count[0]` places are in use. A key is in the index at most once.
    """

    bucket_keys: Array  # (buckets, width) int64
    bucket_slots: Array  # (buckets, width) uint32
    stash_keys: Array  # int64
    stash_slots: Array  # uint32
    stash_count: Array  # (1,) int64


@dataclass(frozen=True, eq=False)
class PoolUpdate:
    """A pool's part of an update whose rows all have slots. The fields are as in `sum_by_key`,
    `apply` and `touch`."""

    batch: Batch
    gradients: Sequence[Gradients]
    scale: np.float32
    kind: str
    memory: "SlotMemory"
    slots: Array  # by id, (u,) or more
    parameters: TableParameters
    dim: int
    clock: int
    """The clock that the scores of the updated rows get; 0: scores do not change."""
    counting: int
    sums: Array
    """Memory for sums of keys that occur more than once, (positions / 2, dim) or more. Its content
    is void after the update."""


SlotMemory = Any
"""The slots of a pool. Each slot has a row (`embstore.layout`), the row key of this row, a score
(`embstore.score`), and a flag that is set if the slot is dirty.

A free slot's key is EMPTY_KEY. Code outside the device reads only the attribute `rows`: an Array of
rows, as `gather` takes it.
"""


@dataclass(frozen=True)
class SlotContents:
    """The contents of some slots, on the host."""

    keys: Keys
    scores: NDArray[np.int64]
    dirty: NDArray[np.bool_]
    rows: Rows | None = None
    """The rows, (n, stride), if they were requested and are small; else None."""

    def of(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> "SlotContents":
        """Return the contents of some of the slots."""
        rows = None if self.rows is None else self.rows[chosen]
        return SlotContents(self.keys[chosen], self.scores[chosen], self.dirty[chosen], rows)

    @classmethod
    def joined(cls, parts: Sequence["SlotContents"]) -> "SlotContents":
        """Return one object with the contents of several, one after the other, without rows."""
        columns = zip(*[(part.keys, part.scores, part.dirty) for part in parts], strict=True)
        return cls(*map(np.concatenate, columns))


@dataclass(frozen=True)
class Selected:
    """Victims, (n,), in ascending order of slot."""

    slots: Slots
    scores: NDArray[np.int64]
    contents: Callable[[Slots], SlotContents]
    """A function that returns the contents of some of the victims whose contents were read."""


@dataclass(frozen=True)
class Missing:
    """The keys of a call that have no slot in level one, (m,), on the device. First come the keys
    that have no slot in level two either."""

    keys: Array  # int64
    places: Array  # int32, ids in the call
    below: Array  # int64, slots of level two, -1 for absent keys
    victims: Array
    """The slots of level one with the lowest scores, whose rows leave."""
    highest: int
    """The highest score of the victims; -1: there are no victims."""
    absent: int
    """The number of keys that are in neither level."""
    dirty: int
    """The number of keys whose rows are dirty in level two."""
    dirty_victims: int
    by_table: NDArray[np.int64]
    """The number of missing keys of each table, by table number."""
