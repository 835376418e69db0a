"""Rule 11: leaves and root."""

import hashlib
import struct

import numpy as np

from embstore.arithmetic import BLOCK_KEYS, leaf, root
from tests.unit.plain import fp32


def blake(content):
    return hashlib.blake2b(content, digest_size=32).digest()


def test_leaf_packs_key_weights_and_state_row_by_row():
    keys, weights = np.array([256, 511]), fp32((1, 2, -0.0), (3, 4, 1e-45))
    state = fp32((5, 6), (7, 8))
    content = b"".join(
        struct.pack("<q3f2f", *row)
        for row in ((256, 1, 2, -0.0, 5, 6), (511, 3, 4, float(weights[1, 2]), 7, 8))
    )
    assert leaf(keys, weights, state) == blake(content)


def test_leaf_without_state():
    weights = fp32((1, 2))
    found = leaf(np.array([7]), weights, np.empty((1, 0), np.float32))
    assert found == blake(struct.pack("<q2f", 7, 1, 2))
    assert len(found) == 32


def test_leaf_takes_views_and_keeps_the_bits_of_a_nan():
    records = np.arange(30, dtype=np.float32).reshape(3, 10)
    records.view(np.uint32)[1, 2] = 0x7FC00000
    keys, weights, state = np.arange(6)[::2], records[:, :4], records[:, 4:9]
    expected = b"".join(
        struct.pack("<q", key) + records[i, :9].tobytes() for i, key in enumerate(keys)
    )
    assert leaf(keys, weights, state) == blake(expected)


def test_leaf_sees_the_sign_of_a_zero():
    state = np.empty((1, 0), np.float32)
    keys = np.array([0])
    assert leaf(keys, fp32((0.0,)), state) != leaf(keys, fp32((-0.0,)), state)


def test_root_hashes_length_identity_t_and_blocks():
    leaves = np.arange(64, dtype=np.uint8).reshape(2, 32)
    big = 2**32 - 1
    expected = struct.pack("<Q", 5) + b"{J..}" + struct.pack("<Q", 9)
    expected += struct.pack("<Q", 3) + bytes(range(32)) + struct.pack("<Q", big)
    expected += bytes(range(32, 64))
    for dtype in (np.int64, np.uint64):
        assert root(b"{J..}", 9, np.array([3, big], dtype), leaves) == blake(expected).hex()


def test_root_of_a_table_without_a_written_row():
    found = root(b"{}", 0, np.empty(0, np.int64), np.empty((0, 32), np.uint8))
    assert found == blake(struct.pack("<Q", 2) + b"{}" + struct.pack("<Q", 0)).hex()


def test_a_block_has_256_keys():
    assert BLOCK_KEYS == 256
