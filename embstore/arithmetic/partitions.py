"""The partition of a row (contract.md, rule 12).

A partition is the unit of a table that one shard stores, and that moves between shards. Each table
has 1,024 partitions, so that some hundred shards have similar amounts of data, and a map of
partitions is small. A block of the digest (rule 11) is in one partition as a whole, so no leaf is
split between shards; in a sparse table a block is a partition. Popular keys are close to each other
in many data sets. Therefore neighbouring blocks are assigned to unrelated partitions: the finalizer
of splitmix64 mixes every bit of a block's number into the ten bits that are used.
"""

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.digest import BLOCK_KEYS
from embstore.arrays import Keys
from embstore.sharding import PARTITIONS

KEY_SHIFTS = {"dense": BLOCK_KEYS.bit_length() - 1, "sparse": 0}
"""For each key space, the number of low bits of a key that do not affect its partition."""
_SHIFT = np.uint64(64 - (PARTITIONS.bit_length() - 1))
_GOLDEN, _FIRST, _SECOND = map(
    np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def partitions(seed: int, keys: Keys, key_space: str) -> NDArray[np.uint16]:
    """Return the partition of each key of a table.

    Parameters
    ----------
    seed, key_space : seed and key space of the table
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
    """Return the shard of each key, and the positions of the keys by shard. There are `count`
    shards.

    Parameters
    ----------
    seed, key_space : seed and key space of the table
    keys : (n,) int64, contiguous; >= 0 in a dense table
    owners : (PARTITIONS,) the shard that has each partition

    Returns
    -------
    (n,) the shard of each key; (count + 1,) the first index of each shard in the third array; (n,)
    the positions of the keys, shard by shard, ascending within each shard.
    """
    shard_of = owners[partitions(seed, keys, key_space)]
    starts = np.concatenate([[0], np.cumsum(np.bincount(shard_of, minlength=count))])
    order = np.argsort(shard_of.astype(np.uint16), kind="stable")  # NumPy sorts 16 bits by radix
    return shard_of, starts, order.astype(np.int32)
