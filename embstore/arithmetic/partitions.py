"""Which partition a row belongs to (contract.md, rule 12).

A partition is what a shard has, or gives to another: 1,024 of each table, so that some hundred
shards have about as much as one another, and a map of them is small. A block of the digest (rule
11) is in one partition as a whole, so leaves never straddle shards. Popular keys stand side by side
in many data sets, so neighbouring blocks go to partitions that have nothing to do with each other:
the finalizer of splitmix64 mixes every bit of a block's number into the ten that are kept.
"""

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.digest import BLOCK_KEYS
from embstore.arrays import Keys
from embstore.sharding import PARTITIONS

_BLOCK_SHIFT = np.uint64(BLOCK_KEYS.bit_length() - 1)
_SHIFT = np.uint64(64 - (PARTITIONS.bit_length() - 1))
_GOLDEN, _FIRST, _SECOND = map(
    np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def partitions(seed: int, keys: Keys) -> NDArray[np.uint16]:
    """Return the partition of each key of a table.

    Parameters
    ----------
    seed : the table's
    keys : (n,) int64, >= 0
    """
    return partitions_of_blocks(seed, keys.view(np.uint64) >> _BLOCK_SHIFT)


def partitions_of_blocks(seed: int, blocks: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """Return the partition of each block, (n,) uint64."""
    z = blocks * _GOLDEN
    z += np.uint64(seed)
    z ^= z >> np.uint64(30)
    z *= _FIRST
    z ^= z >> np.uint64(27)
    z *= _SECOND
    z ^= z >> np.uint64(31)
    z >>= _SHIFT
    return z.astype(np.uint16)


def by_shard(
    seed: int, keys: Keys, owners: NDArray[np.int32], count: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """Return which of `count` shards has each key, and the keys' positions by shard.

    Parameters
    ----------
    seed : the table's
    keys : (n,) int64, >= 0, contiguous
    owners : (PARTITIONS,) the shard that has each partition

    Returns
    -------
    (n,) the shard of each key; (count + 1,) where each shard's positions begin; (n,) the positions
    of the keys, shard by shard, ascending within each.
    """
    shard_of = owners[partitions(seed, keys)]
    starts = np.concatenate([[0], np.cumsum(np.bincount(shard_of, minlength=count))])
    order = np.argsort(shard_of.astype(np.uint16), kind="stable")  # 16 bits: by counting
    return shard_of, starts, order.astype(np.int32)
