"""Keys by shard, compiled: the same as `partitions.by_shard`, in two passes over the keys."""

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import jit
from embstore.arithmetic.compiled import group_positions
from embstore.arithmetic.jit import building_block, kernel
from embstore.arithmetic.partitions import KEY_SHIFTS
from embstore.arrays import Keys

_PARTITION_SHIFT = np.uint64(54)
_SHIFT_30, _SHIFT_27, _SHIFT_31 = np.uint64(30), np.uint64(27), np.uint64(31)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@building_block
def partition_of(seed: np.uint64, number: np.uint64) -> np.uint64:
    """Return the partition of a number, which rule 12 calls n."""
    z = seed + number * _GOLDEN
    z = (z ^ (z >> _SHIFT_30)) * _FIRST
    z = (z ^ (z >> _SHIFT_27)) * _SECOND
    return (z ^ (z >> _SHIFT_31)) >> _PARTITION_SHIFT


@kernel
def _by_shard(
    keys: jit.Int64sIn,
    seed: jit.Uint64sIn,
    owners: jit.Int32sIn,
    shard_of: jit.Int32s,
    starts: jit.Int64s,
    positions: jit.Int32s,
    key_shift: jit.Int,
) -> None:
    shift = np.uint64(key_shift)
    for i in range(keys.shape[0]):
        shard_of[i] = owners[partition_of(seed[0], np.uint64(keys[i]) >> shift)]
    group_positions(shard_of, starts, positions)


def by_shard(
    seed: int, keys: Keys, owners: NDArray[np.int32], count: int, key_space: str
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """`partitions.by_shard`. Any thread."""
    shard_of, positions = np.empty(len(keys), np.int32), np.empty(len(keys), np.int32)
    starts = np.empty(count + 1, np.int64)
    seeds, shift = np.array([seed], np.uint64), KEY_SHIFTS[key_space]
    _by_shard(keys, seeds, owners, shard_of, starts, positions, shift)
    return shard_of, starts, positions
