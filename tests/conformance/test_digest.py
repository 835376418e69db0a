"""digest: what it says, and that keeping it up to date gives what a fresh store computes."""

import numpy as np
import pytest

from embstore.config import RowWiseAdagrad, Sgd, Uniform
from tests.conformance.backends import TINY
from tests.conformance.cases import OPTIMIZERS, batch, config, generator, normal, ones

VECTOR = {"dim": 4, "rows": 3, "initializer": Uniform(-0.1, 0.1), "seed": 7}
VECTORS = {
    "sgd": (
        Sgd(0.05),
        "c099f16ab0b1b6b8bd9520e0380e272527408843f4ff45b731116709fd975235",
    ),
    "rowwise_adagrad": (
        RowWiseAdagrad(0.05),
        "ba995de3753d3c3d56e4c1fbdaeff2ce0747166c48502bf1cf458cf827fa059b",
    ),
}


@pytest.mark.parametrize(("optimizer", "digest"), VECTORS.values(), ids=VECTORS)
def test_vectors_of_the_contract(open_twin, optimizer, digest):
    twin = open_twin()
    table = twin.create_table("v", optimizer=optimizer, **VECTOR)
    grads = np.arange(1, 13, dtype=np.float32).reshape(3, 4) * np.float32(0.1)
    twin.on("v", "update", [2, 0, 2], grads)
    twin.on("v", "update", [2], grads[:1])
    assert table.digest() == digest


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_kept_up_to_date_it_is_that_of_a_fresh_store(open_twin, optimizer):
    """After each command, by each verb that writes; the fresh store computes it in one go."""
    twin, rng = open_twin(limits=TINY, cache_bytes=64 << 10), generator(81)
    twin.create_table("a", **config(dim=16, rows=5000, optimizer=optimizer))
    twin.create_table("b", **config(dim=16, rows=5000, optimizer=optimizer))
    width = twin.reference.table("a").config.state_dim
    for _ in range(4):
        shares = {name: batch(rng, 60, 5000, 16) for name in "ab"}
        twin.update(shares)
        twin.check()
        twin.update_ranks([{"a": shares["b"]}, {"b": shares["a"], "a": shares["a"]}])
        twin.check()
        keys = rng.integers(0, 5000, 30)
        twin.on("a", "assign", keys, normal(rng, 30, 16))
        twin.check()
        twin.on("b", "put_rows", keys, normal(rng, 30, 16), normal(rng, 30, width), 1)
        twin.check()
        twin.on("a", "update_pooled", keys, [0, 10, 30], normal(rng, 2, 16), "sum")
        twin.check()
    kept = {name: twin.store.table(name).digest() for name in "ab"}
    twin.reopen()
    assert {name: twin.store.table(name).digest() for name in "ab"} == kept


def test_reading_changes_nothing(open_twin):
    twin = open_twin()
    table = twin.create_table("a", **config())
    twin.on("a", "update", [1], ones(1))
    before = table.digest()
    table.lookup(np.arange(1000))
    table.lookup_pooled([1, 2], [0, 2])
    table.read_rows([3])
    table.flush()
    assert table.digest() == before


def test_of_an_empty_table_and_of_one_that_only_counted(open_twin):
    twin = open_twin()
    table = twin.create_table("a", **config(rows=0))
    empty = table.digest()
    twin.on("a", "update", [], np.empty((0, 4), np.float32))
    assert table.digest() != empty


def test_tunables_are_not_in_it(open_twin):
    twin = open_twin()
    table = twin.create_table("a", **config())
    twin.on("a", "update", [1], ones(1))
    before = table.digest()
    twin.on("a", "grow", 5000)
    table.learning_rate = twin.reference.table("a").learning_rate = 9.0
    assert table.digest() == before


@pytest.mark.parametrize("key", [0, 255, 256, 511, 512, 2**39, 2**40 - 1])
def test_first_and_last_keys_of_blocks(open_twin, key):
    twin = open_twin()
    twin.create_table("a", **config(rows=2**40))
    twin.on("a", "update", [key], ones(1))
    twin.check()
    twin.on("a", "update", [key ^ 1], ones(1))


def test_after_a_refused_update_between_two_digests(open_twin):
    twin = open_twin()
    table = twin.create_table("a", **config())
    before = table.digest()
    with pytest.raises(ValueError, match="finite"):
        table.update([1, 700], ones(2, 4, np.inf))
    assert table.digest() == before
    twin.on("a", "update", [700], ones(1))
