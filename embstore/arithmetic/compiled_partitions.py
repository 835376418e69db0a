"""Keys by shard, compiled: the twin of `partitions.by_shard`, in two passes over the keys."""

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import jit
from embstore.arithmetic.compiled import group_positions
from embstore.arithmetic.jit import kernel
from embstore.arrays import Keys

_BLOCK_SHIFT, _PARTITION_SHIFT = np.uint64(8), np.uint64(54)
_SHIFT_30, _SHIFT_27, _SHIFT_31 = np.uint64(30), np.uint64(27), np.uint64(31)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@kernel
def _by_shard(
    keys: jit.Int64sIn,
    seed: jit.Uint64sIn,
    owners: jit.Int32sIn,
    shard_of: jit.Int32s,
    starts: jit.Int64s,
    positions: jit.Int32s,
) -> None:
    for i in range(keys.shape[0]):
        z = seed[0] + (np.uint64(keys[i]) >> _BLOCK_SHIFT) * _GOLDEN
        z = (z ^ (z >> _SHIFT_30)) * _FIRST
        z = (z ^ (z >> _SHIFT_27)) * _SECOND
        shard_of[i] = owners[(z ^ (z >> _SHIFT_31)) >> _PARTITION_SHIFT]
    group_positions(shard_of, starts, positions)


def by_shard(
    seed: int, keys: Keys, owners: NDArray[np.int32], count: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """`partitions.by_shard`. Any thread."""
    shard_of, positions = np.empty(len(keys), np.int32), np.empty(len(keys), np.int32)
    starts = np.empty(count + 1, np.int64)
    _by_shard(keys, np.array([seed], np.uint64), owners, shard_of, starts, positions)
    return shard_of, starts, positions
