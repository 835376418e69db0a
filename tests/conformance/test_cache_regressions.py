"""A cache that is shared by pools of several layouts."""

import numpy as np
import pytest

from embstore.config import Adagrad, Constant, Sgd
from embstore.errors import CapacityError
from tests.conformance.traces import smallest_cache

SGD = {"dim": 40, "rows": 400, "optimizer": Sgd(0.1), "initializer": Constant(0.0)}
ADAGRAD = {"dim": 40, "rows": 400, "optimizer": Adagrad(0.1), "initializer": Constant(0.0)}
EVERY = np.arange(400)


def test_pool_that_comes_late_fits_where_it_fitted_at_first(open_twin, backend):
    """A pool that gave slabs back kept the index that it had grown for them."""
    smallest = smallest_cache(backend, {"a": SGD, "b": ADAGRAD})
    twin = open_twin(cache_bytes=smallest)
    twin.create_table("a", **SGD)
    twin.create_table("b", **ADAGRAD)
    twin.drop_table("b")
    twin.store.table("a").lookup(EVERY)
    twin.create_table("b", **ADAGRAD)


@pytest.mark.parametrize("more", range(0, 40_000, 2_500))
def test_cache_stays_within_its_bytes(open_twin, backend, more):
    """The index was made twice as large as was budgeted."""
    smallest = smallest_cache(backend, {"a": SGD, "b": ADAGRAD})
    twin = open_twin(cache_bytes=smallest + more)
    tables = [twin.create_table("a", **SGD), twin.create_table("b", **ADAGRAD)]
    for table in tables:
        table.lookup(EVERY)
    cache = twin.store.stats()["cache"]
    assert cache["memory_bytes"] <= cache["budget_bytes"]


def test_restore_of_more_than_the_cache_can_take_is_refused_whole(open_twin, backend):
    twin = open_twin()
    twin.create_table("a", **SGD)
    twin.create_table("b", **ADAGRAD)
    twin.checkpoint("both")
    twin.drop_table("b")
    twin.reopen(cache_bytes=smallest_cache(backend, {"a": SGD}))
    with pytest.raises(CapacityError, match="cache_bytes"):
        twin.store.restore("both")
    twin.check()
