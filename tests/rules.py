"""The rules of contract.md in NumPy, one function each, loops over keys: what the reference model
computes with (reference.py).

They share no arithmetic with the engine. Only the elements of a row are vectorised, where one NumPy
operation is one rounded fp32 operation (rule 1). Keys are Python's integers, >= 0 in sparse tables
too. The arrays of a Row are never changed in place.
"""

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.config import (
    Adagrad,
    Adam,
    Ftrl,
    Initializer,
    Normal,
    Optimizer,
    RowWiseAdagrad,
    Sgd,
    TableConfig,
    Uniform,
)

fp32 = np.float32
Keys = NDArray[np.int64]
Rows = NDArray[np.float32]


class Row(NamedTuple):
    """Weights (dim,) and optimizer state (state_dim,) of one key, both read-only."""

    weights: Rows
    state: Rows


def power(base: float, exponent: int) -> float:
    """Rule 1: b**n in float64 by square-and-multiply."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def canonical(values: Rows) -> Rows:
    """Rule 1: a read-only copy in which every NaN is 0x7fc00000."""
    copy = np.array(values, fp32)
    copy.view(np.uint32)[np.isnan(copy)] = 0x7FC00000
    copy.flags.writeable = False
    return copy


def check_denormals() -> None:
    """Rule 1: raise where this thread flushes denormals to zero."""
    smallest = np.array([1], np.uint32).view(fp32)
    if (smallest + smallest).view(np.uint32)[0] != 2:
        raise RuntimeError("expected denormals to be kept, found FTZ or DAZ set in this thread")


def sum_sequentially(terms: Sequence[Rows]) -> Rows:
    """Add one after the other, starting from the first (from 0.0, a sum of -0.0 would be 0.0)."""
    total = terms[0].copy()
    for term in terms[1:]:
        total += term
    return total


def sum_occurrences(terms: Sequence[Rows]) -> Rows:
    """Rule 2: chunks of 64 consecutive occurrences, then the chunk sums. At least one term."""
    chunks = [terms[start : start + 64] for start in range(0, len(terms), 64)]
    return sum_sequentially([sum_sequentially(chunk) for chunk in chunks])


def sum_over_dim(values: Rows) -> Any:
    """Rule 3: element d into partial d mod 32, then folded by 16, 8, 4, 2, 1."""
    partials = np.zeros(32, fp32)  # zeros where dim < 32: they change no sum of squares
    partials[: len(values)] = values[:32]
    for start in range(32, len(values), 32):
        piece = values[start : start + 32]
        partials[: len(piece)] += piece
    for half in (16, 8, 4, 2, 1):
        partials[:half] += partials[half : 2 * half]
    return partials[0]


@np.errstate(all="ignore")
def decayed(optimizer: Optimizer, learning_rate: float, w: Rows, g: Rows) -> tuple[Any, Any]:
    """Rule 4, weight decay: the w and g that the formula of an optimizer begins with."""
    if isinstance(optimizer, Ftrl) or not optimizer.weight_decay:
        return w, g
    if optimizer.decoupled_weight_decay:
        return fp32(1.0 - learning_rate * optimizer.weight_decay) * w, g
    wd = fp32(optimizer.weight_decay)
    return w, g + wd * w if wd > 0 else g


@np.errstate(all="ignore")
def apply_update(optimizer: Optimizer, learning_rate: float, t: int, row: Row, g: Rows) -> Row:
    """Rule 4: one update of one row. g is the scaled sum; t counts this update."""
    w: Any = row.weights
    state: Any = row.state
    lr = fp32(learning_rate)
    w, g = decayed(optimizer, learning_rate, w, g)
    match optimizer:
        case Sgd():
            w = w - lr * g
        case RowWiseAdagrad():
            state = state + sum_over_dim(g * g) / fp32(len(g))
            w = w - (lr / (np.sqrt(state) + fp32(optimizer.epsilon))) * g
        case Adagrad():
            state = state + g * g
            w = w - (lr * g) / (np.sqrt(state) + fp32(optimizer.epsilon))
        case Adam(beta1=b1, beta2=b2):
            correction = math.sqrt(1.0 - power(b2, t))
            lr_t = fp32(learning_rate * correction / (1.0 - power(b1, t)))
            eps_t = fp32(optimizer.epsilon * correction)
            m, v = np.split(state, 2)
            m = fp32(b1) * m + fp32(1.0 - b1) * g
            v = fp32(b2) * v + (fp32(1.0 - b2) * g) * g
            w = w - (lr_t * m) / (np.sqrt(v) + eps_t)
            state = np.concatenate([m, v])
        case Ftrl(beta=beta, l1=l1, l2=l2):
            z, n = np.split(state, 2)
            n1 = n + g * g
            sigma = (np.sqrt(n1) - np.sqrt(n)) / lr
            z = (z + g) - sigma * w
            w = np.zeros_like(z)
            far = ~(np.abs(z) <= fp32(l1))  # where z is a NaN, w is one
            shrunk = z[far] - np.copysign(fp32(l1), z[far])
            w[far] = -(shrunk / ((fp32(beta) + np.sqrt(n1[far])) / lr + fp32(l2)))
            state = np.concatenate([z, n1])
    return Row(canonical(w), canonical(state))


@np.errstate(all="ignore")
def scaled_sums(shares: Sequence[tuple[Keys, Rows]], scale: Any) -> dict[int, Rows]:
    """Rules 2, 6, 4: key -> g: over a rank's occurrences, then over ranks that have it, then scale.

    shares : (keys, gradients) of one table, in rank order. Keys come out by first occurrence.
    """
    rank_sums: dict[int, list[Rows]] = {}
    for keys, grads in shares:
        occurrences: dict[int, list[Rows]] = {}
        for key, grad in zip(keys.tolist(), grads, strict=True):
            occurrences.setdefault(key, []).append(grad)
        for key, terms in occurrences.items():
            rank_sums.setdefault(key, []).append(sum_occurrences(terms))
    return {key: scale * sum_sequentially(sums) for key, sums in rank_sums.items()}


@np.errstate(all="ignore")
def is_accepted(g: Rows) -> bool:
    """Rule 9: the squares of a scaled sum (dim,) have a finite sum over dim.

    g alone is enough: what is not finite stays so through more additions and any scale, also 0.
    """
    return bool(np.isfinite(sum_over_dim(g * g)))


def unaccepted(gradients: Mapping[str, Mapping[int, Rows]]) -> list[tuple[str, int]]:
    """Rule 9: (table, key) of every g that is refused, tables in call order, keys by occurrence."""
    every = [(name, key, g) for name, table in gradients.items() for key, g in table.items()]
    return [(name, key) for name, key, g in every if not is_accepted(g)]


@np.errstate(all="ignore")
def pool_bag(rows: Rows, mode: str, weights: Rows | None) -> Rows:
    """Rule 8: one bag's rows (count, dim) -> (dim,)."""
    if len(rows) == 0:
        return np.zeros(rows.shape[1], fp32)
    terms = rows if weights is None else [w * row for w, row in zip(weights, rows, strict=True)]
    total = sum_occurrences(list(terms))
    return canonical(total / fp32(len(rows)) if mode == "mean" else total)


@np.errstate(all="ignore")
def spread_bags(bag_grads: Rows, offsets: Keys, mode: str, weights: Rows | None) -> Rows:
    """Rule 8: gradients of bags -> of occurrences, (n, dim). Those of empty bags go nowhere."""
    grads = np.empty((offsets[-1], bag_grads.shape[1]), fp32)
    for grad, (start, stop) in zip(bag_grads, pairwise(offsets.tolist()), strict=True):
        for i in range(start, stop):
            if mode == "mean":
                grads[i] = grad / fp32(stop - start)
            else:
                grads[i] = grad if weights is None else weights[i] * grad
    return grads


def philox(counter: Sequence[Any], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Rule 10: Philox4x32-10. Four counter words, each an int or an array -> (4, ...) words."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(10):
        product0, product1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c2 = (product1 >> half) ^ c1 ^ np.uint64(k0), (product0 >> half) ^ c3 ^ np.uint64(k1)
        c1, c3 = product1 & low, product0 & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3))


@np.errstate(all="ignore")
def initial_weights(initializer: Initializer, seed: int, key: int, dim: int) -> Any:
    """Rule 10: the weights of a row that was never written."""
    row_key, philox_key = (key & 0xFFFFFFFF, key >> 32), (seed & 0xFFFFFFFF, seed >> 32)
    match initializer:
        case Uniform():
            words = philox((*row_key, np.arange(-(-dim // 4)), 0), philox_key)
            per_element = words.T.reshape(-1)[:dim]  # word e mod 4 of block e // 4
            u = (per_element >> np.uint64(8)).astype(fp32) * fp32(2.0**-24)
            low, high = fp32(initializer.low), fp32(initializer.high)
            return low + (high - low) * u
        case Normal():
            words = philox((*row_key, np.arange(dim), 1), philox_key)
            halves = (words >> np.uint64(16)) + (words & np.uint64(0xFFFF))
            s = (halves.sum(axis=0).astype(np.int64) - 262140).astype(fp32)
            return fp32(initializer.mean) + fp32(initializer.std) * (s * fp32(1 / 53509.9))
        case _:
            return np.full(dim, initializer.value, fp32)


def initial_state(config: TableConfig) -> Rows:
    """Rule 4: state starts at 0, that of the adagrad kinds at `initial_accumulator`."""
    start = getattr(config.optimizer, "initial_accumulator", 0.0)
    return canonical(np.full(config.state_dim, start, fp32))


def partition(seed: int, key: int, key_space: str) -> int:
    """Return the partition of a row (rule 12)."""
    n = key if key_space == "sparse" else key // 256
    z = (seed + n * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return (z ^ z >> 31) >> 54


def default_seed(name: str) -> int:
    """Rule 10: the first 8 bytes, little-endian, of blake2b-256 of the name in UTF-8."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=32).digest()[:8], "little")


def row_bytes(key: int, row: Row) -> bytes:
    """Rule 11: a row as it is hashed."""
    return struct.pack("<Q", key) + b"".join(part.astype("<f4").tobytes() for part in row)


def dense_leaves(written: Mapping[int, Row]) -> dict[int, bytes]:
    """Rule 11: the leaves of all blocks of 256 keys with a written row, ascending."""
    leaves: dict[int, Any] = {}
    for key in sorted(written):
        leaf = leaves.setdefault(key // 256, hashlib.blake2b(digest_size=32))
        leaf.update(row_bytes(key, written[key]))
    return {block: leaf.digest() for block, leaf in leaves.items()}


def sparse_leaves(seed: int, written: Mapping[int, Row]) -> dict[int, bytes]:
    """Rule 11: the leaves of all partitions with a written row, ascending."""
    sums: dict[int, int] = {}
    for key, row in written.items():
        block = partition(seed, key, "sparse")
        hashed = hashlib.blake2b(row_bytes(key, row), digest_size=32).digest()
        sums[block] = (sums.get(block, 0) + int.from_bytes(hashed, "little")) % 2**256
    return {block: sums[block].to_bytes(32, "little") for block in sorted(sums)}


def table_leaves(config: TableConfig, written: Mapping[int, Row]) -> dict[int, bytes]:
    """Rule 11: the leaves of all blocks with a written row, ascending."""
    if config.key_space == "sparse":
        return sparse_leaves(config.seed, written)
    return dense_leaves(written)


def table_digest(config: TableConfig, t: int, written: Mapping[int, Row]) -> str:
    """Rule 11: the root over J, t and the leaves."""
    identity_json = config.identity_json()
    root = hashlib.blake2b(digest_size=32)
    root.update(struct.pack("<Q", len(identity_json)) + identity_json + struct.pack("<Q", t))
    for block, leaf in table_leaves(config, written).items():
        root.update(struct.pack("<Q", block) + leaf)
    return root.hexdigest()
