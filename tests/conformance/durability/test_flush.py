"""flush, of the store and of a table: dirty rows to the log, and no promise beyond."""

import numpy as np
import pytest

from tests.conformance.cases import config, generator, normal, ones

pytestmark = pytest.mark.needs("one_store")


@pytest.fixture
def twin(open_twin):
    twin = open_twin()
    for name, dim in (("a", 4), ("b", 4), ("c", 7)):
        twin.create_table(name, **config(dim=dim))
        twin.on(name, "update", np.arange(10 * dim), normal(generator(111), 10 * dim, dim))
    return twin


def dirty(twin):
    return {name: s["dirty_rows"] for name, s in twin.store.stats()["tables"].items()}


def test_returns_how_many_rows_it_wrote(twin):
    assert dirty(twin) == {"a": 40, "b": 40, "c": 70}
    assert twin.store.table("a").flush() == 40
    assert dirty(twin) == {"a": 0, "b": 40, "c": 70}
    assert twin.store.flush() == 110
    assert twin.store.flush() == 0


def test_is_no_command_and_rows_stay_resident(twin):
    before = twin.store.command, twin.store.stats()["tables"]["a"]["resident_rows"]
    twin.store.flush()
    assert (twin.store.command, twin.store.stats()["tables"]["a"]["resident_rows"]) == before


def test_a_row_written_again_is_dirty_again(twin):
    twin.store.flush()
    twin.on("a", "update", [1], ones(1))
    twin.on("a", "update", [1], ones(1))
    assert dirty(twin) == {"a": 1, "b": 0, "c": 0}
    assert twin.store.table("b").flush() == 0
    assert twin.store.flush() == 1
