"""XXH3-64 of many short values at once (contract.md, "Hashed ids"), with the results of xxHash 0.8.

A value is a range of bytes of a buffer. Values of up to 16 bytes are hashed here. All values of one
class of lengths are hashed together, with as many NumPy operations as XXH3 needs for one value.
Longer values are passed one by one to the library `xxhash`, which takes no longer than NumPy would.
Names are taken from xxHash's own description.

For values of eight bytes, such as integers, the hash is one to one: no two integers have the same
hash.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_MASK = (1 << 64) - 1
_LOW = np.uint64(0xFFFFFFFF)
_PRIME64_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME64_3 = np.uint64(0x165667B19E3779F9)
_PRIME_MX1 = np.uint64(0x165667919E3779F9)
_PRIME_MX2 = np.uint64(0x9FB21C651E98DF25)
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb"
)
"""The first 72 bytes of XXH3's secret; short values use no other bytes of it."""
_LENGTH_MAX = 16
_BLOCK = 1 << 14
"""The number of values that are hashed at a time, so that intermediate results fit into a
processor's cache."""


def hashes_of_words(words: NDArray[np.integer[Any]], seed: int) -> Words:
    """Return the hashes (n,) of the 8 little-endian bytes of each word (n,)."""
    hashes, bits = np.empty(len(words), np.uint64), words.view(np.uint64)
    for low in range(0, len(words), _BLOCK):
        part = bits[low : low + _BLOCK]
        hashes[low : low + _BLOCK] = _of_8_bytes(_rotated(part, 32), np.uint64(8), seed)
    return hashes


def hashes_of_bytes(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], seed: int
) -> Words:
    """Return the hashes (n,) of values in a buffer.

    Parameters
    ----------
    data : (bytes,) contiguous
    starts, lengths : (n,), the first byte of each value, and its number of bytes
    """
    hashes = np.empty(len(starts), np.uint64)
    for low in range(0, len(starts), _BLOCK):
        block = slice(low, low + _BLOCK)
        hashes[block] = _of_block(_Buffer(data), starts[block], lengths[block], seed)
    return hashes


class _Buffer:
    """Little-endian words of a buffer, which may begin at any byte."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self.data = data
        self._views = {dtype: _words_anywhere(data, dtype) for dtype in ("<u4", "<u8")}

    def read8(self, starts: NDArray[np.int64]) -> Words:
        return self.data[starts].astype(np.uint64)

    def read32(self, starts: NDArray[np.int64]) -> Words:
        return self._views["<u4"][starts].astype(np.uint64)

    def read64(self, starts: NDArray[np.int64]) -> Words:
        words: Words = self._views["<u8"][starts]
        return words


def _words_anywhere(data: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    """Return a view of overlapping words: one for each byte at which a word can begin."""
    count = max(len(data) - np.dtype(dtype).itemsize + 1, 0)
    return np.ndarray((count,), dtype, data if count else b"", strides=(1,))


def _of_block(
    buffer: _Buffer, starts: NDArray[np.int64], lengths: NDArray[np.int64], seed: int
) -> Words:
    hashes = np.empty(len(starts), np.uint64)
    least = -1
    for most, of_class in _CLASSES:
        chosen = np.flatnonzero((lengths > least) & (lengths <= most))
        if len(chosen):
            hashes[chosen] = of_class(buffer, starts[chosen], lengths[chosen], seed)
        least = most
    longer = np.flatnonzero(lengths > _LENGTH_MAX)
    if len(longer):
        hashes[longer] = _by_library(buffer.data, starts[longer], lengths[longer], seed)
    return hashes


def _by_library(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], seed: int
) -> Words:
    from xxhash import xxh3_64_intdigest

    view = data.data
    bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return np.array([xxh3_64_intdigest(view[low:high], seed) for low, high in bounds], np.uint64)


# One function per class of lengths. 64-bit arithmetic wraps; values that do not depend on the data
# are computed in Python.


def _of_0(buffer: _Buffer, starts: NDArray[np.int64], lengths: Any, seed: int) -> Words:
    same = np.full(len(starts), seed ^ _secret64(56) ^ _secret64(64), np.uint64)
    return _xxh64_avalanche(same)


def _of_1_to_3(buffer: _Buffer, starts: Any, lengths: Any, seed: int) -> Words:
    first, last = buffer.read8(starts), buffer.read8(starts + lengths - 1)
    middle = buffer.read8(starts + (lengths >> 1))
    size = lengths.astype(np.uint64)
    combined = (first << np.uint64(16)) | (middle << np.uint64(24)) | last | (size << np.uint64(8))
    flip = (_secret32(0) ^ _secret32(4)) + seed
    return _xxh64_avalanche(combined ^ np.uint64(flip & _MASK))


def _of_4_to_8(buffer: _Buffer, starts: Any, lengths: Any, seed: int) -> Words:
    first, last = buffer.read32(starts), buffer.read32(starts + lengths - 4)
    return _of_8_bytes(last + (first << np.uint64(32)), lengths.astype(np.uint64), seed)


def _of_8_bytes(mixed: Words, size: Any, seed: int) -> Words:
    """Return the hash of 4 to 8 bytes; the first four bytes are the high half of `mixed`."""
    swapped = int.from_bytes((seed & 0xFFFFFFFF).to_bytes(4, "little"), "big")
    flip = (_secret64(8) ^ _secret64(16)) - (seed ^ (swapped << 32))
    h = mixed ^ np.uint64(flip & _MASK)
    h = (h ^ _rotated(h, 49) ^ _rotated(h, 24)) * _PRIME_MX2
    h = (h ^ ((h >> np.uint64(35)) + size)) * _PRIME_MX2
    found: Words = h ^ (h >> np.uint64(28))
    return found


def _of_9_to_16(buffer: _Buffer, starts: Any, lengths: Any, seed: int) -> Words:
    low_flip = (_secret64(24) ^ _secret64(32)) + seed
    high_flip = (_secret64(40) ^ _secret64(48)) - seed
    low = buffer.read64(starts) ^ np.uint64(low_flip & _MASK)
    high = buffer.read64(starts + lengths - 8) ^ np.uint64(high_flip & _MASK)
    sums = lengths.astype(np.uint64) + low.byteswap() + high + _folded_product(low, high)
    return _avalanche(sums)


_CLASSES: tuple[tuple[int, Callable[..., Words]], ...] = (
    (0, _of_0),
    (3, _of_1_to_3),
    (8, _of_4_to_8),
    (_LENGTH_MAX, _of_9_to_16),
)
"""The functions that hash values, each with the length of the longest values that it takes."""


def _folded_product(a: Words, b: Words) -> Words:
    """Return, for each 128-bit product, the XOR of its low half and its high half."""
    half = np.uint64(32)
    a_low, a_high, b_low, b_high = a & _LOW, a >> half, b & _LOW, b >> half
    low, middle = a_low * b_low, a_high * b_low
    cross = (low >> half) + (middle & _LOW) + a_low * b_high
    high = (middle >> half) + (cross >> half) + a_high * b_high
    found: Words = (a * b) ^ high
    return found


def _rotated(words: Words, bits: int) -> Words:
    found: Words = (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
    return found


def _avalanche(h: Words) -> Words:
    h = (h ^ (h >> np.uint64(37))) * _PRIME_MX1
    return h ^ (h >> np.uint64(32))


def _xxh64_avalanche(h: Words) -> Words:
    h = (h ^ (h >> np.uint64(33))) * _PRIME64_2
    h = (h ^ (h >> np.uint64(29))) * _PRIME64_3
    return h ^ (h >> np.uint64(32))


def _secret32(at: int) -> int:
    return int.from_bytes(_SECRET[at : at + 4], "little")


def _secret64(at: int) -> int:
    return int.from_bytes(_SECRET[at : at + 8], "little")
