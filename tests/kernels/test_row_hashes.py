"""add_row_hashes: of each row the hash that hashlib makes, in the sum of its partition."""

import hashlib

import numpy as np
import pytest

from embstore.arithmetic.compiled_digest import add_row_hashes, leaves_of_sums, row_sums
from embstore.layout import Layout
from tests.kernels.samples import awkward
from tests.rules import Row, sparse_leaves

SEED = 53
ODD_KEYS = [0, 1, 2**63 - 1, 2**63, 2**64 - 2]


def samples(count, dim, state_dim):
    """Return keys and rows, whose padding is of any bits."""
    rng = np.random.default_rng(SEED)
    keys = np.unique(np.append(rng.integers(0, 2**64, count, np.uint64), np.uint64(ODD_KEYS)))
    keys = rng.permutation(keys)[:count]
    stride = Layout(dim, state_dim, "any").stride
    return keys.view(np.int64), awkward(rng, count, stride)


def leaves_by_kernel(keys, rows, used, pieces=1):
    """Return the leaves, of sums that are made in pieces."""
    sums = [row_sums() for _ in range(pieces)]
    for piece, own in enumerate(sums):
        part = slice(len(keys) * piece // pieces, len(keys) * (piece + 1) // pieces)
        add_row_hashes(SEED, keys[part], rows[part], used, own)
    blocks, leaves = leaves_of_sums(sums)
    return {int(block): leaf.tobytes() for block, leaf in zip(blocks, leaves, strict=True)}


def leaves_by_reference(keys, rows, dim, used):
    whole = {
        int(key): Row(row[:dim], row[dim:used])
        for key, row in zip(keys.view(np.uint64), rows, strict=True)
    }
    return sparse_leaves(SEED, whole)


@pytest.mark.parametrize(
    ("dim", "state_dim"),
    [(1, 0), (1, 1), (4, 1), (16, 1), (15, 15), (30, 0), (31, 0), (62, 0), (63, 1), (64, 128)],
)
@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 2_000])
def test_leaves_are_those_of_the_reference(dim, state_dim, count):
    """Of rows of less than a block of 128 bytes, of whole ones, and of one element more."""
    keys, rows = samples(count, dim, state_dim)
    used = dim + state_dim
    expected = leaves_by_reference(keys, rows, dim, used)
    assert leaves_by_kernel(keys, rows, used) == expected
    assert leaves_by_kernel(keys, rows, used, pieces=3) == expected


def test_a_row_alone_in_its_partition_has_the_hash_of_hashlib():
    keys, rows = samples(1, 16, 1)
    own = keys.tobytes() + rows[0, :17].tobytes()
    expected = hashlib.blake2b(own, digest_size=32).digest()
    assert list(leaves_by_kernel(keys, rows, 17).values()) == [expected]


def test_no_order_and_no_cut_changes_a_leaf():
    keys, rows = samples(3_000, 4, 1)
    order = np.random.default_rng(SEED + 1).permutation(len(keys))
    expected = leaves_by_kernel(keys, rows, 5)
    assert leaves_by_kernel(keys[order], rows[order], 5, pieces=7) == expected
    rows[0, 4] = 17.0
    assert leaves_by_kernel(keys, rows, 5) != expected


def test_sums_carry_from_word_to_word_and_wrap():
    """A sum just below each power of 2**64, to which any hash adds."""
    keys, rows = samples(1, 4, 0)
    block, leaf = next(iter(leaves_by_kernel(keys, rows, 4).items()))
    hashed = int.from_bytes(leaf, "little")
    for words in range(1, 5):
        sums, before = row_sums(), 2 ** (64 * words) - 1
        sums[block, :words] = 2**64 - 1
        add_row_hashes(SEED, keys, rows, 4, sums)
        blocks, leaves = leaves_of_sums([sums])
        assert blocks.tolist() == [block]
        assert int.from_bytes(leaves.tobytes(), "little") == (before + hashed) % 2**256
