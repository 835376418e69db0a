"""Rule 10: initial rows are a pure function of (initializer, seed, key, dim)."""

import numpy as np
import pytest

from embstore.arithmetic import initial_rows, philox4x32
from embstore.config import Constant, Normal, Uniform, default_seed

DIMS = (1, 7, 13, 33, 4096)
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
STEPS = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF


def hexes(row):
    return " ".join(f"{bits:08x}" for bits in row.view(np.uint32))


def philox_in_integers(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = MULTIPLIERS[0] * c[0], MULTIPLIERS[1] * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & WORD, (p0 >> 32) ^ c[3] ^ k[1], p0 & WORD]
        k = [(k[0] + STEPS[0]) & WORD, (k[1] + STEPS[1]) & WORD]
    return c


def row_words(seed, key, block, stream):
    return philox_in_integers((key & WORD, key >> 32, block, stream), (seed & WORD, seed >> 32))


def keys_of(*keys):
    return np.array(keys, np.int64)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 " * 4, (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
        # The third known answer of the Random123 distribution (kat_vectors): all bits set.
        ("ffffffff " * 4, (WORD, WORD), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ],
)
def test_philox_gives_the_known_answers(counter, key, words):
    found = philox4x32(np.array([int(word, 16) for word in counter.split()], np.uint64), key)
    assert " ".join(f"{word:08x}" for word in found) == words


def test_uniform_gives_the_contract_vector():
    rows = initial_rows(Uniform(-0.01, 0.01), 7, keys_of(5), 8)
    assert rows.dtype == np.float32
    assert hexes(rows[0]) == (
        "bb538884 bb56a4f0 3c00fff6 3b8fbcfe 3a785e50 bba0cc92 bba76ab6 3b660000"
    )


def test_normal_gives_the_contract_vector():
    rows = initial_rows(Normal(0.0, 0.02), 7, keys_of(5), 4)
    assert rows.dtype == np.float32
    assert hexes(rows[0]) == "bba3f4e6 bc0cf96c 3ce1ad7d 3cb03a85"


def test_default_seed_gives_the_contract_vector():
    assert default_seed("v") == 16735848030510122220


@pytest.mark.parametrize("dim", DIMS)
def test_uniform_takes_word_e_mod_4_of_block_e_div_4(dim):
    seed, key = 0xFEDCBA9876543210, (1 << 39) + 12345
    row = initial_rows(Uniform(0.0, 1.0), seed, keys_of(key), dim)[0]
    words = [row_words(seed, key, e // 4, 0)[e % 4] for e in range(dim)]
    assert [float(value) for value in row] == [(word >> 8) * 2.0**-24 for word in words]


@pytest.mark.parametrize("dim", DIMS)
def test_normal_takes_one_block_per_element_of_stream_1(dim):
    seed, key = 2**64 - 1, 2**40 - 1
    row = initial_rows(Normal(1.0, 3.0), seed, keys_of(key), dim)[0]
    for e in range(dim):
        words = row_words(seed, key, e, 1)
        total = sum((word & 0xFFFF) + (word >> 16) for word in words) - 262140
        deviation = np.float32(total) * np.float32(1 / 53509.9)
        assert row[e] == np.float32(1) + np.float32(3) * deviation


def test_uniform_rounds_the_span_and_not_the_bounds_difference():
    low, high = -0.1, 0.3
    row = initial_rows(Uniform(low, high), 3, keys_of(9), 64)[0]
    unit = initial_rows(Uniform(0.0, 1.0), 3, keys_of(9), 64)[0]
    span = np.float32(high) - np.float32(low)
    expected = [np.float32(low) + np.float32(span * u) for u in unit]
    assert row.tolist() == [float(value) for value in expected]


def test_constant_rounds_once_and_keeps_a_negative_zero():
    assert hexes(initial_rows(Constant(0.1), 7, keys_of(1), 2)[0]) == "3dcccccd 3dcccccd"
    assert hexes(initial_rows(Constant(-0.0), 7, keys_of(1), 1)[0]) == "80000000"


@pytest.mark.parametrize("initializer", [Uniform(-1, 1), Normal(0, 1), Constant(2)])
def test_a_row_depends_on_its_key_alone(initializer):
    keys = keys_of(5, 0, 2**40 - 1, 5, 2**32)
    rows = initial_rows(initializer, 11, keys, 7)
    assert rows.shape == (5, 7)
    for key, row in zip(keys, rows, strict=True):
        assert hexes(row) == hexes(initial_rows(initializer, 11, keys_of(key), 7)[0])


@pytest.mark.parametrize("initializer", [Uniform(-1, 1), Normal(0, 1)])
def test_a_narrower_row_is_the_beginning_of_a_wider_one(initializer):
    wide = initial_rows(initializer, 11, keys_of(3), 33)[0]
    assert hexes(initial_rows(initializer, 11, keys_of(3), 13)[0]) == hexes(wide[:13])


@pytest.mark.parametrize("initializer", [Uniform(-1, 1), Normal(0, 1), Constant(2)])
def test_no_keys_give_no_rows(initializer):
    rows = initial_rows(initializer, 0, keys_of(), 13)
    assert rows.shape == (0, 13)
    assert rows.dtype == np.float32


def test_normal_that_overflows_is_infinite_without_a_warning():
    rows = initial_rows(Normal(0.0, 3e38), 7, np.arange(64), 8)
    assert np.isinf(rows).any()
    assert not np.isnan(rows).any()


def test_both_words_of_key_and_seed_count():
    uniform = Uniform(0, 1)
    rows = {
        hexes(initial_rows(uniform, seed, keys_of(key), 4)[0])
        for seed in (1, 1 << 32)
        for key in (1, 1 << 32)
    }
    assert len(rows) == 4
