"""Rule 11: leaves and root."""

import hashlib
import struct

import numpy as np
import pytest

from embstore.arithmetic import (
    BLOCK_KEYS,
    apply_update,
    initial_rows,
    initial_state,
    leaf,
    root,
    sum_by_key,
    unique,
    update_scalars,
)
from embstore.config import RowWiseAdagrad, Sgd, TableConfig, Uniform

G = (np.arange(1, 13).astype(np.float32) * np.float32(0.1)).reshape(3, 4)
IDENTITIES = {
    "sgd": b'{"dim":4,"dtypes":{"weights":"float32"},"initializer":{"high":0.1,"kind":"uniform",'
    b'"low":-0.1},"key_space":"dense","name":"v","optimizer":{"kind":"sgd"},"seed":7}',
    "rowwise_adagrad": b'{"dim":4,"dtypes":{"state":"float32","weights":"float32"},"initializer":'
    b'{"high":0.1,"kind":"uniform","low":-0.1},"key_space":"dense","name":"v","optimizer":'
    b'{"epsilon":1e-08,"initial_accumulator":0.0,"kind":"rowwise_adagrad"},"seed":7}',
}
DIGESTS = {
    "sgd": "c099f16ab0b1b6b8bd9520e0380e272527408843f4ff45b731116709fd975235",
    "rowwise_adagrad": "ba995de3753d3c3d56e4c1fbdaeff2ce0747166c48502bf1cf458cf827fa059b",
}


def blake(content):
    return hashlib.blake2b(content, digest_size=32).digest()


def fp32(*values):
    return np.array(values, np.float32)


def updated_rows(optimizer):
    """Keys 0 and 2 after the two updates of rule 4's vector."""
    keys = np.array([0, 2])
    weights = initial_rows(Uniform(-0.1, 0.1), 7, keys, 4)
    state = initial_state(optimizer, 4, 2)
    for t, named, gradients in ((1, [2, 0, 2], G), (2, [2], G[:1])):
        unique_keys, inverse = unique(np.array(named))
        places = unique_keys // 2
        rows, own_state = weights[places], state[places]
        scalars = update_scalars(optimizer, t, optimizer.learning_rate, 4)
        sums = sum_by_key(inverse, len(unique_keys), gradients)
        apply_update(optimizer.kind, rows, own_state, sums, scalars)
        weights[places], state[places] = rows, own_state
    return keys, weights, state


@pytest.mark.parametrize("optimizer", [Sgd(0.05), RowWiseAdagrad(0.05)], ids=lambda o: o.kind)
def test_digest_gives_the_contract_vectors(optimizer):
    config = TableConfig.checked(
        "v", dim=4, rows=3, optimizer=optimizer, initializer=Uniform(-0.1, 0.1), seed=7
    )
    assert config.identity_json() == IDENTITIES[optimizer.kind]
    leaves = np.frombuffer(leaf(*updated_rows(optimizer)), np.uint8)[None]
    found = root(config.identity_json(), 2, np.array([0], np.uint64), leaves)
    assert found == DIGESTS[optimizer.kind]


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
