"""Rule 10: initial rows are a pure function of (initializer, seed, key, dim)."""

import numpy as np
import pytest

from embstore.arithmetic import initial_rows, philox4x32
from embstore.config import Constant, Normal, Uniform
from tests import rules
from tests.unit.plain import bits

DIMS = (1, 7, 13, 33, 4096)
SEED, KEY = 0xFEDCBA9876543210, 2**39 + 2**33 + 5
"""Both words of each count."""


def keys_of(*keys):
    return np.array(keys, np.int64)


def by_arithmetic(initializer, seed, key, dim):
    return initial_rows(initializer, seed, keys_of(key), dim)[0]


@pytest.fixture(params=[by_arithmetic, rules.initial_weights], ids=["arithmetic", "reference"])
def initial(request):
    return request.param


@pytest.mark.parametrize("philox", [philox4x32, rules.philox])
def test_philox_gives_the_known_answer_of_all_bits_set(philox):
    """The third of the Random123 distribution (kat_vectors); two are on the contract's page."""
    word = 0xFFFFFFFF
    found = [int(word) for word in philox(np.full(4, word, np.uint64), (word, word))]
    assert found == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize(
    "initializer",
    [
        Uniform(0.0, 1.0),
        Uniform(-0.3, 0.7),
        Uniform(0.1, 0.3),  # the span of rounded bounds
        Uniform(-1.0, 1.0 + 2.0**-24 + 2.0**-30),  # a bound that is rounded up
        Normal(0.1, 0.3),
    ],
    ids=str,
)
def test_rows_are_those_of_the_reference(initializer, dim):
    row = by_arithmetic(initializer, SEED, KEY, dim)
    assert row.dtype == np.float32
    assert bits(row) == bits(rules.initial_weights(initializer, SEED, KEY, dim))


def test_constant_rounds_once_and_keeps_a_negative_zero(initial):
    assert bits(initial(Constant(0.1), 7, 1, 2)) == [0x3DCCCCCD] * 2
    assert bits(initial(Constant(-0.0), 7, 1, 1)) == [0x80000000]


@pytest.mark.parametrize("initializer", [Uniform(-1, 1), Normal(0, 1), Constant(2)])
def test_a_row_depends_on_its_key_alone(initializer):
    keys = keys_of(5, 0, 2**40 - 1, 5, 2**32)
    rows = initial_rows(initializer, 11, keys, 7)
    assert rows.shape == (5, 7)
    for key, row in zip(keys, rows, strict=True):
        assert bits(row) == bits(by_arithmetic(initializer, 11, key, 7))
    none = initial_rows(initializer, 0, keys_of(), 13)
    assert (none.shape, none.dtype) == ((0, 13), np.float32)


def test_normal_that_overflows_is_infinite_without_a_warning():
    rows = initial_rows(Normal(0.0, 3e38), 7, np.arange(64), 8)
    assert np.isinf(rows).any()
    assert not np.isnan(rows).any()
