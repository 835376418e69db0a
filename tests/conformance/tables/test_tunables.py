"""t and learning_rate: what counts, and what updates use that give no rate."""

import numpy as np
import pytest

from embstore.config import Sgd
from tests.conformance.cases import KINDS, OPTIMIZERS, config, grow, normal, ones
from tests.conformance.cases import generator as seeded


def set_rate(twin, name, rate):
    twin.store.table(name).learning_rate = rate
    twin.reference.table(name).learning_rate = rate
    assert twin.store.command == twin.reference.command_number


def test_t_counts_updates_and_nothing_else(open_table):
    twin, table = open_table()
    twin.on("a", "update", [], np.empty((0, 4), np.float32))
    assert table.t == 1
    twin.on("a", "assign", [1], ones(1))
    grow(twin, "a", 2000)
    table.lookup([1])
    set_rate(twin, "a", 0.5)
    twin.on("a", "update", [1], ones(1, 4, np.nan), on_nonfinite="skip")
    assert table.t == 1
    twin.on("a", "update_pooled", [1], [0, 1], ones(1), "sum")
    assert table.t == 2


@KINDS
def test_learning_rate_set_is_the_one_used(open_table, optimizer):
    twin, table = open_table(a=config(optimizer=optimizer))
    for rate in (0.5, 1e-45, np.float32(0.3), 1 / 3):
        set_rate(twin, "a", rate)
        twin.on("a", "update", [1, 2], normal(seeded(91), 2, 4))
    assert table.learning_rate == table.optimizer.learning_rate == 1 / 3


def test_rate_travels_as_float64(open_twin):
    """Rule 1: rounded to fp32 where it is used, not where it is kept (adam's rates need that)."""
    twin = open_twin(a=config(optimizer=OPTIMIZERS["adam"]))
    set_rate(twin, "a", 0.1 + 2**-40)
    twin.reopen()
    assert twin.store.table("a").learning_rate == 0.1 + 2**-40


@pytest.mark.parametrize("number", [np.float32(0.1), np.float64(0.1), np.int64(1), 1])
def test_rate_of_any_kind_of_number_can_be_committed(open_twin, number):
    """A trainer's schedule gives NumPy scalars: the catalogue must be able to hold them."""
    twin = open_twin(a=config(optimizer=Sgd(number)))
    twin.on("a", "update", [1], ones(1))
    twin.checkpoint("c")
    twin.reopen()
    assert twin.store.table("a").learning_rate == float(number)
