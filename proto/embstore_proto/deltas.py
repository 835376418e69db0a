"""Ascending keys, encoded as the differences between them: one or two bytes per key instead of
eight.

The encoding is the first number, then the difference of each number from the previous one, each as
a varint (LEB128): seven bits per byte, low bits first, with the highest bit set in all bytes of a
number except its last. A batch of n keys of a table of N rows has differences of about N / n. So
each of 10,000 keys of a table of 10 million rows takes 2 bytes.

A number has at most nine bytes, which contain the 63 bits of an int64 that is not negative. As in
protobuf, a number can be encoded in more bytes than it needs; it is decoded to the same value.

Decoding does not trust its input. It loops over the byte positions within a number, and not over
numbers. It works in blocks, and so takes little memory in addition to the decoded keys. Therefore a
server that knows the number of keys knows how much memory the decoding takes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import Keys
from embstore.errors import InvalidArgumentError

_VARINT_BYTES_MAX = 9
_BITS = 7
_LOW, _MORE = 0x7F, 0x80
_BLOCK = 1 << 16  # more bytes than a number has


@dataclass(frozen=True, eq=False)
class Deltas:
    """Keys that are sent as their differences."""

    count: int
    encoded: NDArray[np.uint8]

    def __len__(self) -> int:
        return self.count

    @property
    def shape(self) -> tuple[int]:
        """The shape of the keys."""
        return (self.count,)


def encode(keys: Keys) -> Deltas:
    """Encode keys, (n,) int64, ascending (equal neighbours are allowed) and not negative."""
    deltas = np.diff(keys, prepend=np.int64(0))
    lengths = np.ones(len(deltas), np.int64)
    for place in range(1, _VARINT_BYTES_MAX):
        longer = deltas >= 1 << _BITS * place
        if not longer.any():
            break
        lengths += longer
    begins = np.cumsum(lengths) - lengths
    encoded = np.empty(int(lengths.sum()), np.uint8)
    for place in range(int(lengths.max(initial=0))):
        some = np.flatnonzero(lengths > place)
        low = (deltas[some] >> _BITS * place) & _LOW
        encoded[begins[some] + place] = low | np.where(lengths[some] > place + 1, _MORE, 0)
    return Deltas(len(keys), encoded)


def decode(encoded: NDArray[np.uint8], count: int, what: str) -> Keys:
    """Return the (count,) int64 keys that (bytes,) uint8 encode, in ascending order.

    Raises InvalidArgumentError if the number of keys is not `count`, the last number is incomplete,
    a number has more than nine bytes, or a key exceeds int64; `what` names the array in the message
    of the error.
    """
    found = int(np.count_nonzero(encoded < _MORE))
    if found != count:
        raise InvalidArgumentError(f"{what}: expected {count} numbers as deltas, found {found}")
    if len(encoded) and encoded[-1] >= _MORE:
        raise InvalidArgumentError(
            f"{what}: expected whole numbers as deltas, found the last one cut off"
        )
    keys = np.empty(count, np.int64)
    begin = done = 0
    while begin < len(encoded):
        block = encoded[begin : begin + _BLOCK]
        ends = np.flatnonzero(block < _MORE)
        lengths = np.diff(ends, prepend=-1)
        longest = int(lengths.max(initial=0)) if len(ends) else len(block)
        if longest > _VARINT_BYTES_MAX:
            raise InvalidArgumentError(
                f"{what}: expected numbers of at most {_VARINT_BYTES_MAX} bytes as deltas, found "
                f"one of {longest}"
            )
        numbers = keys[done : done + len(ends)]
        numbers[:] = 0
        for place in range(longest):
            some = np.flatnonzero(lengths > place)
            byte = block[ends[some] - lengths[some] + 1 + place]
            numbers[some] |= (byte & _LOW).astype(np.int64) << _BITS * place
        done += len(ends)
        begin += int(ends[-1]) + 1
    np.cumsum(keys, out=keys)
    if len(keys) and keys.min() < 0:  # the first sum beyond int64 is negative
        raise InvalidArgumentError(
            f"{what}: expected keys below 2**63 as deltas, found a larger one"
        )
    return keys
