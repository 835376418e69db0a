"""Initial rows: a pure function of (initializer, seed, key, dim), contract.md rule 10.

A row that was never written is not stored; it is computed whenever it is read. This requires a
random generator without a state, which is indexed by seed and row key. Philox4x32-10 (Salmon et
al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC11) maps a 128-bit counter and a 64-bit key to
128 bits with ten rounds of two multiplications.

    key      = seed low, seed high
    counter  = row key low, row key high, block, stream

Uniform uses stream 0 and one word per element, four elements to a block. Normal uses stream 1 and
one block per element: the sum of eight 16-bit halves. This sum is close to normal (bounded at 4.9
sigma). Unlike Box-Muller, it needs no libm, whose results differ between machines. Each product in
the code fits in uint64, so the words are stored as uint64 with an upper half of zero.
"""

from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys, Rows
from embstore.config import Constant, Initializer, Normal, Uniform

ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_UNIFORM_STREAM = 0
_NORMAL_STREAM = 1
_HALVES_MEAN = 262140
"""Mean of the sum of eight halves, each uniform from 0 to 65535: 8 * 65535 / 2."""
_HALVES_TO_SIGMA = np.float32(1 / 53509.9)
"""1 / sqrt(8 * (65536**2 - 1) / 12), rounded as the contract rounds it."""


def philox4x32(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Return the four output words of each counter.

    Parameters
    ----------
    counter : (..., 4) uint64, each word below 2**32
    key : two words below 2**32
    """
    c0, c1, c2, c3 = np.moveaxis(counter, -1, 0)
    k0, k1 = key
    for _ in range(ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (p1 >> 32) ^ c1 ^ k0,
            p1 & _WORD,
            (p0 >> 32) ^ c3 ^ k1,
            p0 & _WORD,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return np.stack([c0, c1, c2, c3], axis=-1)


def _row_words(seed: int, keys: Keys, block_count: int, stream: int) -> NDArray[np.uint64]:
    """Return the random words of each row, (n, block_count, 4)."""
    counter = np.empty((len(keys), block_count, 4), np.uint64)
    row_keys = keys.view(np.uint64)[:, None]
    counter[..., 0] = row_keys & _WORD
    counter[..., 1] = row_keys >> 32
    counter[..., 2] = np.arange(block_count, dtype=np.uint64)
    counter[..., 3] = stream
    return philox4x32(counter, (seed & _WORD, seed >> 32))


def _uniform_rows(low: float, high: float, seed: int, keys: Keys, dim: int) -> Rows:
    words = _row_words(seed, keys, -(-dim // 4), _UNIFORM_STREAM)
    words = words.reshape(len(keys), words.shape[1] * 4)[:, :dim]
    unit = (words >> 8).astype(np.float32) * np.float32(2**-24)
    rows: Rows = np.float32(low) + (np.float32(high) - np.float32(low)) * unit
    return rows


@np.errstate(all="ignore")
def _normal_rows(mean: float, std: float, seed: int, keys: Keys, dim: int) -> Rows:
    words = _row_words(seed, keys, dim, _NORMAL_STREAM)
    halves = ((words & 0xFFFF) + (words >> 16)).sum(axis=-1).astype(np.int64)
    deviations = (halves - _HALVES_MEAN).astype(np.float32)  # exact: below 2**24
    rows: Rows = np.float32(mean) + np.float32(std) * (deviations * _HALVES_TO_SIGMA)
    return rows


def initial_rows(initializer: Initializer, seed: int, keys: Keys, dim: int) -> Rows:
    """Return the (n, dim) float32 rows that `keys` have before anything is written to them.

    Parameters
    ----------
    seed : the table's seed, 0 <= seed < 2**64
    keys : (n,) int64, the caller's keys (not row keys of the store); they may repeat

    Notes
    -----
    The function takes about 100 bytes of temporary memory per element (normal: 400), so fill large
    arrays in portions.
    """
    match initializer:
        case Uniform(low, high):
            return _uniform_rows(low, high, seed, keys, dim)
        case Normal(mean, std):
            return _normal_rows(mean, std, seed, keys, dim)
        case Constant(value):
            return np.full((len(keys), dim), np.float32(value))
        case _:
            assert_never(initializer)
