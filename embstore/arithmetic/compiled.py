"""The contract's arithmetic for one row at a time, as compiled building blocks of CPU kernels.

The formulas are those of the NumPy files of this package, and give the same bits. Here each formula
is a loop over one row, so that a kernel reads and writes each row once. LLVM vectorises over dim,
where elements are independent, and never over a sum, whose order is part of its value.

Building blocks take rows as one-dimensional arrays, which `row_at` creates from an address. A view
of a NumPy array would cost an atomic reference count per row. An index into a two-dimensional array
would be tested and multiplied for each element, because Numba allows negative signed indices. A
client calls only `unique` and `sum_by_key`, at the end of this module (`choice.py`).

    unique      a table of at least 2n places, open addressing, linear; a place is (key, base + id),
                and is in use if its second half is at least `base`. Each call takes a new base,
                above all ids so far, so that a table is never cleared; any int64 can be a key.
    group       a stable counting sort of positions by id
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic import jit
from embstore.arithmetic.denormals import kept
from embstore.arithmetic.jit import (
    bits_of,
    building_block,
    carray,
    float_of,
    kernel,
    pointer_at,
    prefetch,
)
from embstore.arrays import KEY_BITS, Keys
from embstore.layout import ELEMENT, ELEMENT_BYTES, VALUE, VALUE_BYTES

CHUNK_OCCURRENCES = 64
PARTIALS = 32
PLAIN, WEIGHTED, DIVIDED = 0, 1, 2
"""The value that an occurrence adds: value, coefficient * value, or value / coefficient."""
EXPONENT_MASK = np.int32(0x7F800000)
"""The exponent bits of a float32; a value is finite unless all of these bits are set."""
LARGE_EXPONENT = np.int32(0x5C000000)
"""The exponent bits of `sums.LARGE`; a value is below `sums.LARGE` if its exponent bits are
less."""

_NAN_BITS = np.int32(0x7FC00000)
_WORD = np.uint64(0xFFFFFFFF)
_HALF_WORD = np.uint64(0xFFFF)
_SHIFT_8, _SHIFT_16, _SHIFT_32 = np.uint64(8), np.uint64(16), np.uint64(32)
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEP_0, _KEY_STEP_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_UNIFORM_STREAM, _NORMAL_STREAM = np.uint64(0), np.uint64(1)
_HALVES_MEAN = np.int64(262140)
_HALVES_TO_SIGMA = np.float32(1 / 53509.9)
_NEXT = np.uint64(1)
_TO_UNIT = np.float32(2**-24)
_MIX_SHIFT = np.uint64(33)
_MIX_MULTIPLIER_0 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_MULTIPLIER_1 = np.uint64(0xC4CEB9FE1A85EC53)


@building_block
def canonical(value: np.float32) -> np.float32:
    """Return `value`, or the canonical NaN if it is a NaN."""
    return value if value == value else float_of(_NAN_BITS)


@building_block
def mix(key: np.int64) -> np.uint64:
    """Return 64 bits, each of which depends on every bit of the key (MurmurHash3's fmix64).

    The function is one to one, so two keys never have the same 64 bits.
    """
    h = np.uint64(key)
    h = (h ^ (h >> _MIX_SHIFT)) * _MIX_MULTIPLIER_0
    h = (h ^ (h >> _MIX_SHIFT)) * _MIX_MULTIPLIER_1
    return h ^ (h >> _MIX_SHIFT)


@building_block
def table_of(row_key: np.int64, mask: int) -> int:
    """Return the table number of a row key, the index of the table's parameters. `mask` contains
    the bits of a row key that are the key (`embstore.row_keys`)."""
    return int((row_key & ~mask) >> KEY_BITS)


@building_block
def philox(
    row_key: np.uint64, block: np.uint64, stream: np.uint64, seed: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Return the four words of one Philox4x32-10 block (rule 10), each in the lower half of a
    uint64."""
    c0, c1, c2, c3 = row_key & _WORD, row_key >> _SHIFT_32, block, stream
    k0, k1 = seed & _WORD, seed >> _SHIFT_32
    for _ in range(10):
        p0, p1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0, c1 = (p1 >> _SHIFT_32) ^ c1 ^ k0, p1 & _WORD
        c2, c3 = (p0 >> _SHIFT_32) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + _KEY_STEP_0) & _WORD, (k1 + _KEY_STEP_1) & _WORD
    return c0, c1, c2, c3


@building_block
def _uniform(word: np.uint64, low: np.float32, span: np.float32) -> np.float32:
    return low + span * (np.float32(np.int32(word >> _SHIFT_8)) * _TO_UNIT)


@building_block
def fill_uniform(
    row: jit.Elements, row_key: np.uint64, seed: np.uint64, low: np.float32, span: np.float32
) -> None:
    """Fill `row` with Uniform(low, low + span) for `row_key` (rule 10)."""
    dim = row.shape[0]
    whole = dim >> 2
    for block in range(whole):
        w0, w1, w2, w3 = philox(row_key, np.uint64(block), _UNIFORM_STREAM, seed)
        row[4 * block] = element_of(_uniform(w0, low, span))
        row[4 * block + 1] = element_of(_uniform(w1, low, span))
        row[4 * block + 2] = element_of(_uniform(w2, low, span))
        row[4 * block + 3] = element_of(_uniform(w3, low, span))
    if dim & 3:
        words = philox(row_key, np.uint64(whole), _UNIFORM_STREAM, seed)
        for d in range(4 * whole, dim):
            row[d] = element_of(_uniform(words[d & 3], low, span))


@building_block
def _halves(word: np.uint64) -> np.uint64:
    return (word & _HALF_WORD) + (word >> _SHIFT_16)


@building_block
def fill_normal(
    row: jit.Elements, row_key: np.uint64, seed: np.uint64, mean: np.float32, std: np.float32
) -> None:
    """Fill `row` with Normal(mean, std) for `row_key` (rule 10)."""
    for d in range(row.shape[0]):
        w0, w1, w2, w3 = philox(row_key, np.uint64(d), _NORMAL_STREAM, seed)
        halves = np.int64(_halves(w0) + _halves(w1) + _halves(w2) + _halves(w3))
        deviation = np.float32(np.int32(halves - _HALVES_MEAN))  # exact: below 2**24
        row[d] = element_of(mean + std * (deviation * _HALVES_TO_SIGMA))


@building_block
def value_of(element: Any) -> np.float32:
    """Convert an element of a row to a value (float32); a value is returned as it is."""
    return np.float32(element)


@building_block
def element_of(value: np.float32) -> Any:
    """Convert a value (float32) to an element of a row."""
    return value


@building_block
def row_at(start: int, index: int, stride: int, dim: int) -> jit.Elements:
    """Return the (dim,) elements at an address plus `index` rows of `stride` elements."""
    row: jit.Elements = carray(pointer_at(start + index * stride * ELEMENT_BYTES), dim, ELEMENT)
    return row


@building_block
def values_at(start: int, index: int, dim: int) -> jit.Float32s:
    """Return the (dim,) values at an address plus `index` rows of dim values."""
    values: jit.Float32s = carray(pointer_at(start + index * dim * VALUE_BYTES), dim, VALUE)
    return values


@building_block
def copy_row(row: jit.Elements, value: jit.Elements) -> None:
    """row = value. `row` and `value` are both elements, or both values."""
    for d in range(row.shape[0]):
        row[d] = value[d]


@building_block
def load_row(values: jit.Float32s, row: jit.Elements) -> None:
    """values = the elements of `row`, converted to values."""
    for d in range(values.shape[0]):
        values[d] = value_of(row[d])


@building_block
def start_sum(total: jit.Float32s, value: jit.Elements, coefficient: np.float32, form: int) -> None:
    """total = the occurrence. A sum starts from its first term, since 0.0 + x would turn -0.0 into
    0.0."""
    if form == PLAIN:
        load_row(total, value)
    elif form == WEIGHTED:
        for d in range(total.shape[0]):
            total[d] = coefficient * value_of(value[d])
    else:
        for d in range(total.shape[0]):
            total[d] = value_of(value[d]) / coefficient


@building_block
def add_to_sum(
    total: jit.Float32s, value: jit.Elements, coefficient: np.float32, form: int
) -> None:
    """total += the occurrence."""
    if form == PLAIN:
        for d in range(total.shape[0]):
            total[d] += value_of(value[d])
    elif form == WEIGHTED:
        for d in range(total.shape[0]):
            total[d] += coefficient * value_of(value[d])
    else:
        for d in range(total.shape[0]):
            total[d] += value_of(value[d]) / coefficient


@building_block
def scale_row(row: jit.Float32s, scale: np.float32) -> bool:
    """row = scale * row; return whether all elements are below `sums.LARGE`."""
    exponent = np.int32(0)
    for d in range(row.shape[0]):
        scaled = scale * row[d]
        row[d] = scaled
        exponent = max(exponent, np.int32(bits_of(scaled) & EXPONENT_MASK))
    return bool(exponent < LARGE_EXPONENT)


@building_block
def _fold(partials: jit.Float32s, half: int) -> None:
    for lane in range(half):
        partials[lane] += partials[lane + half]


@building_block
def sum_of_squares(value: jit.Float32s, partials: jit.Float32s) -> np.float32:
    """Return the sum of the squares of `value` by rule 3; `partials` (32,) is overwritten.

    The partial sums can start at 0.0 instead of the first square, because a square is never -0.0.
    """
    dim = value.shape[0]
    whole = dim & ~(PARTIALS - 1)
    for lane in range(PARTIALS):
        partials[lane] = np.float32(0.0)
    for base in range(0, whole, PARTIALS):
        for lane in range(PARTIALS):
            partials[lane] += value[base + lane] * value[base + lane]
    for d in range(whole, dim):
        partials[d - whole] += value[d] * value[d]
    _fold(partials, 16)
    _fold(partials, 8)
    _fold(partials, 4)
    _fold(partials, 2)
    _fold(partials, 1)
    total: np.float32 = partials[0]
    return total


@building_block
def unique_block(
    keys: jit.Int64sIn, begin: int, end: int, prefix: np.int64, table: jit.Int64Rows,
    place_count: int, base: int, count: int, unique_keys: jit.Int64s, inverse: jit.Int32s,
    shift: int, places: jit.Uint64s,
) -> int:  # fmt: skip
    """Write the id of each keys[i] of keys[begin:end] to inverse[shift + i]. Return `count` plus
    the number of new ids.

    prefix : or-ed to each key
    table, place_count, base : see the module docstring; `table` is (places, 2)
    places : scratch, (end - begin,) or more. It is unsigned, because Numba tests signed indices
    """
    start, mask = table.ctypes.data, np.uint64(place_count - 1)
    for i in range(begin, end):
        place = mix(keys[i] | prefix) & mask
        places[i - begin] = place
        prefetch(start + np.int64(place) * 16)
    for i in range(begin, end):
        key = keys[i] | prefix
        place = places[i - begin]
        while table[place, 1] >= base and table[place, 0] != key:
            place = (place + _NEXT) & mask
        tag = table[place, 1]
        if tag < base:
            tag = base + count
            table[place, 0] = key
            table[place, 1] = tag
            unique_keys[count] = key
            count += 1
        inverse[shift + i] = tag - base
    return count


@building_block
def group_positions(inverse: jit.Int32sIn, starts: jit.Int64s, positions: jit.Int32s) -> None:
    """Sort positions stably by id. Those of an id are positions[starts[id]:starts[id + 1]]."""
    starts[:] = 0
    for i in range(inverse.shape[0]):
        starts[np.uint32(inverse[i]) + _NEXT] += 1
    total = 0
    for id in range(starts.shape[0] - 1):
        total, starts[id + 1] = total + starts[id + 1], total
    for i in range(inverse.shape[0]):
        place = np.uint32(inverse[i]) + _NEXT
        end = starts[place]
        positions[np.uint64(end)] = i
        starts[place] = end + 1


UNIQUE_BLOCK_KEYS = 128


@kernel
def _unique(
    keys: jit.Int64sIn, table: jit.Int64Rows, unique_keys: jit.Int64s, inverse: jit.Int32s
) -> int:
    places = np.empty(UNIQUE_BLOCK_KEYS, np.uint64)
    count = 0
    for begin in range(0, keys.shape[0], UNIQUE_BLOCK_KEYS):
        end = min(begin + UNIQUE_BLOCK_KEYS, keys.shape[0])
        count = unique_block(
            keys, begin, end, np.int64(0), table, table.shape[0], 1, count, unique_keys, inverse,
            0, places,
        )  # fmt: skip
    return count


@kernel
def _sum_by_key(inverse: jit.Int32sIn, values: jit.Float32RowsIn, sums: jit.Float32Rows) -> None:
    dim = sums.shape[1]
    starts = np.empty(sums.shape[0] + 1, np.int64)
    positions = np.empty(inverse.shape[0], np.int32)
    group_positions(inverse, starts, positions)
    chunk, one = np.empty(dim, np.float32), np.float32(1.0)
    values_start, sums_start = values.ctypes.data, sums.ctypes.data
    for id in range(sums.shape[0]):
        first, last = starts[id], starts[id + 1]
        total = values_at(sums_start, id, dim)
        if first == last:
            total[:] = np.float32(0.0)
        for begin in range(first, last, CHUNK_OCCURRENCES):
            part = total if begin == first else chunk
            for k in range(begin, min(begin + CHUNK_OCCURRENCES, last)):
                value = values_at(values_start, positions[k], dim)
                if k == begin:
                    start_sum(part, value, one, PLAIN)
                else:
                    add_to_sum(part, value, one, PLAIN)
            if begin != first:
                add_to_sum(total, chunk, one, PLAIN)


def table_places(key_count: int) -> int:
    """Return how many places `unique_block` needs for `key_count` keys: a power of two of places,
    at most half of which are used."""
    return 1 << (2 * max(key_count, 1) - 1).bit_length()


def unique(keys: Keys) -> tuple[Keys, NDArray[np.int32]]:
    """`sums.unique`. Any thread."""
    table = np.zeros((table_places(len(keys)), 2), np.int64)
    unique_keys = np.empty(len(keys), np.int64)
    inverse = np.empty(len(keys), np.int32)
    count = _unique(keys, table, unique_keys, inverse)
    return unique_keys[:count].copy(), inverse


@kept
def sum_by_key(
    inverse: NDArray[np.int32],
    count: int,
    values: NDArray[np.float32],
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """`sums.sum_by_key`. Any thread.

    Raises
    ------
    DeviceError : this thread flushes denormals, and its mode cannot be changed.
    """
    sums = np.empty((count, values.shape[1]), np.float32) if out is None else out
    _sum_by_key(inverse, values, sums)
    return sums
