"""Which partition a row belongs to (contract.md, rule 12).

A partition is what a shard has, or gives to another: 1,024 of each table, so that some hundred
shards have about as much as one another, and a map of them is small. A block of the digest (rule
11) is in one partition as a whole, so leaves never straddle shards; of a sparse table, it is the
partition. Popular keys stand side by side in many data sets, so neighbouring blocks go to
partitions that have nothing to do with each other: the finalizer of splitmix64 mixes every bit of a
block's number into the ten that are kept.
"""

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.digest import BLOCK_KEYS
from embstore.arrays import Keys
from embstore.sharding import PARTITIONS

KEY_SHIFTS = {"dense": BLOCK_KEYS.bit_length() - 1, "sparse": 0}
"""By key space: the low bits of a key that its partition does not depend on."""
_SHIFT = np.uint64(64 - (PARTITIONS.bit_length() - 1))
_GOLDEN, _FIRST, _SECOND = map(
    np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def partitions(seed: int, keys: Keys, key_space: str) -> NDArray[np.uint16]:
    """Return the partition of each key of a table.

    Parameters
    ----------
    seed, key_space : the table's
    keys : (n,) int64; >= 0 in a dense table
    """
    return _mixed(seed, keys.view(np.uint64) >> np.uint64(KEY_SHIFTS[key_space]))


def partitions_of_blocks(
    seed: int, blocks: NDArray[np.uint64], key_space: str
) -> NDArray[np.uint16]:
    """Return the partition of each block of the digest, (n,) uint64."""
    return blocks.astype(np.uint16) if key_space == "sparse" else _mixed(seed, blocks)


def _mixed(seed: int, numbers: NDArray[np.uint64]) -> NDArray[np.uint16]:
    z = numbers * _GOLDEN
    z += np.uint64(seed)
    z ^= z >> np.uint64(30)
    z *= _FIRST
    z ^= z >> np.uint64(27)
    z *= _SECOND
    z ^= z >> np.uint64(31)
    z >>= _SHIFT
    return z.astype(np.uint16)


def by_shard(
    seed: int, keys: Keys, owners: NDArray[np.int32], count: int, key_space: str
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """Return which of `count` shards has each key, and the keys' positions by shard.

    Parameters
    ----------
    seed, key_space : the table's
    keys : (n,) int64, contiguous; >= 0 in a dense table
    owners : (PARTITIONS,) the shard that has each partition

    Returns
    -------
    (n,) the shard of each key; (count + 1,) where each shard's positions begin; (n,) the positions
    of the keys, shard by shard, ascending within each.
    """
    shard_of = owners[partitions(seed, keys, key_space)]
    starts = np.concatenate([[0], np.cumsum(np.bincount(shard_of, minlength=count))])
    order = np.argsort(shard_of.astype(np.uint16), kind="stable")  # 16 bits: by counting
    return shard_of, starts, order.astype(np.int32)
