"""assign, put_rows, read_rows: whole rows in and out (rule 7)."""

import numpy as np
import pytest

from tests.conformance.cases import (
    OPTIMIZERS,
    assert_same,
    batch,
    config,
    each,
    generator,
    normal,
    of_each_kind,
    ones,
)


@pytest.fixture
def twin(open_twin):
    """A table of each optimizer, with some of its rows trained."""
    twin = open_twin(**of_each_kind(dim=5))
    for kind in OPTIMIZERS:
        twin.on(kind, "update", *batch(generator(61), 300, dim=5))
    return twin


def state_of(twin, kind, count):
    return normal(generator(62), count, twin.reference.table(kind).config.state_dim)


def test_assign_starts_the_state_anew_and_leaves_t(twin):
    for kind in each(OPTIMIZERS):
        done = twin.on(kind, "assign", np.arange(50), normal(generator(63), 50, 5))
        assert done.t == 1
        _, state = twin.store.table(kind).read_rows(np.arange(50))
        start = getattr(twin.reference.table(kind).config.optimizer, "initial_accumulator", 0.0)
        assert (state == start).all()
        twin.on(kind, "update", *batch(generator(64), 100, dim=5))


def test_assign_the_value_it_has_counts_as_written(twin):
    for kind in each(OPTIMIZERS):
        (fresh,) = [k for k in range(1000) if k not in twin.reference.table(kind).written][:1]
        before = twin.store.table(kind).digest()
        twin.on(kind, "assign", [fresh], twin.store.table(kind).lookup([fresh]))
        assert twin.store.table(kind).digest() != before


def test_assign_float16_is_widened(twin):
    for kind in each(OPTIMIZERS):
        twin.on(kind, "assign", [1, 2], normal(generator(67), 2, 5).astype(np.float16))


def test_assign_keeps_no_reference_to_the_callers_rows(twin):
    for kind in each(OPTIMIZERS):
        rows = ones(2, 5)
        twin.on(kind, "assign", [1, 2], rows)
        rows[:] = 9.0
        assert_same(twin.store.table(kind).lookup([1, 2]), ones(2, 5))


def test_put_rows_sets_weights_and_state_and_adds_to_t(twin):
    for kind in each(OPTIMIZERS):
        keys = generator(68).integers(0, 50, 200)  # of repeated keys the last wins
        done = twin.on(
            kind, "put_rows", keys, normal(generator(69), 200, 5), state_of(twin, kind, 200), 7
        )
        assert done.t == 8
        assert twin.on(kind, "update", *batch(generator(70), 100, dim=5)).t == 9


def test_put_rows_without_rows_adds_to_t(twin):
    for kind in each(OPTIMIZERS):
        nothing = np.empty((0, 5), np.float32)
        assert twin.on(kind, "put_rows", [], nothing, state_of(twin, kind, 0), 2**40).t == 2**40 + 1
        assert twin.on(kind, "put_rows", [], nothing, state_of(twin, kind, 0), 0).t == 2**40 + 1
        twin.on(kind, "update", [1], ones(1, 5))  # adam's corrections with a t as large
    twin.reopen()


def test_rows_sent_to_another_store_make_the_same_table(twin, open_twin):
    """What a hot replica does: read here, put there, with the updates that it missed."""
    for kind in each(OPTIMIZERS):
        keys = np.array(sorted(twin.reference.table(kind).written))
        other = open_twin(f"other-{kind}")
        optimizer = twin.reference.table(kind).config.optimizer
        other.create_table(kind, **config(dim=5, optimizer=optimizer))
        other.on(kind, "put_rows", keys, *twin.store.table(kind).read_rows(keys), 1)
        assert other.store.table(kind).digest() == twin.store.table(kind).digest()
