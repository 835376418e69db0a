"""assign, put_rows, read_rows: whole rows in and out (rule 7)."""

import numpy as np
import pytest

from tests.conformance.cases import (
    OPTIMIZERS,
    assert_same,
    batch,
    config,
    generator,
    normal,
    ones,
)


@pytest.fixture(params=OPTIMIZERS.values(), ids=OPTIMIZERS)
def twin(request, open_twin):
    """A table of each optimizer, with some of its rows trained."""
    twin = open_twin(a=config(dim=5, optimizer=request.param))
    twin.on("a", "update", *batch(generator(61), 300, dim=5))
    return twin


def state_of(twin, count):
    return normal(generator(62), count, twin.reference.table("a").config.state_dim)


def test_assign_starts_the_state_anew_and_leaves_t(twin):
    done = twin.on("a", "assign", np.arange(50), normal(generator(63), 50, 5))
    assert done.t == 1
    _, state = twin.store.table("a").read_rows(np.arange(50))
    start = getattr(twin.reference.table("a").config.optimizer, "initial_accumulator", 0.0)
    assert (state == start).all()
    twin.on("a", "update", *batch(generator(64), 100, dim=5))


def test_assign_the_value_it_has_counts_as_written(twin):
    (fresh,) = [k for k in range(1000) if k not in twin.reference.table("a").written][:1]
    before = twin.store.table("a").digest()
    twin.on("a", "assign", [fresh], twin.store.table("a").lookup([fresh]))
    assert twin.store.table("a").digest() != before


def test_assign_float16_is_widened(twin):
    twin.on("a", "assign", [1, 2], normal(generator(67), 2, 5).astype(np.float16))


def test_assign_keeps_no_reference_to_the_callers_rows(twin):
    rows = ones(2, 5)
    twin.on("a", "assign", [1, 2], rows)
    rows[:] = 9.0
    assert_same(twin.store.table("a").lookup([1, 2]), ones(2, 5))


def test_put_rows_sets_weights_and_state_and_adds_to_t(twin):
    keys = generator(68).integers(0, 50, 200)  # of repeated keys the last wins
    done = twin.on("a", "put_rows", keys, normal(generator(69), 200, 5), state_of(twin, 200), 7)
    assert done.t == 8
    assert twin.on("a", "update", *batch(generator(70), 100, dim=5)).t == 9


def test_put_rows_without_rows_adds_to_t(twin):
    nothing = np.empty((0, 5), np.float32)
    assert twin.on("a", "put_rows", [], nothing, state_of(twin, 0), 2**40).t == 2**40 + 1
    assert twin.on("a", "put_rows", [], nothing, state_of(twin, 0), 0).t == 2**40 + 1
    twin.on("a", "update", [1], ones(1, 5))  # adam's corrections with a t as large
    twin.reopen()


def test_rows_sent_to_another_store_make_the_same_table(twin, open_twin):
    """What a hot replica does: read here, put there, with the updates that it missed."""
    keys = np.array(sorted(twin.reference.table("a").written))
    other = open_twin("other")
    optimizer = twin.reference.table("a").config.optimizer
    other.create_table("a", **config(dim=5, optimizer=optimizer))
    other.on("a", "put_rows", keys, *twin.store.table("a").read_rows(keys), 1)
    assert other.store.table("a").digest() == twin.store.table("a").digest()
