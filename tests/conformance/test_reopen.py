"""close and open again; calls on a store that is closed."""

import numpy as np
import pytest

from embstore.errors import StoreClosedError
from tests.conformance.backends import TINY
from tests.conformance.cases import OPTIMIZERS, assert_same, batch, config, generator, ones


@pytest.mark.parametrize("limits", [None, TINY], ids=["plain", "merging"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_goes_on_where_it_was(open_twin, optimizer, limits):
    twin, rng = open_twin(limits=limits, cache_bytes=64 << 10), generator(131)
    twin.create_table("a", **config(dim=24, optimizer=optimizer))
    for _ in range(5):
        twin.on("a", "update", *batch(rng, 150, dim=24))
        twin.reopen()
        twin.check()


def test_a_store_without_tables(open_twin):
    twin = open_twin()
    twin.reopen()
    twin.create_table("a", **config())
    twin.reopen()
    twin.drop_table("a")
    twin.reopen()
    assert twin.store.tables() == []


def test_configuration_comes_back(open_twin):
    twin = open_twin()
    made = {}
    for i, optimizer in enumerate(OPTIMIZERS.values()):
        made[f"t{i}"] = config(dim=3 + i, rows=10 + i, optimizer=optimizer, seed=2**64 - 1 - i)
        twin.create_table(f"t{i}", **made[f"t{i}"])
    twin.reopen()
    for name, wanted in made.items():
        table = twin.store.table(name)
        assert {key: getattr(table, key) for key in wanted} == wanted
        twin.create_table(name, **wanted)


def test_opened_with_other_options(open_twin):
    """Cache, policy, threads and device are no part of the content."""
    twin, rng = open_twin(cache_bytes=64 << 10), generator(132)
    twin.create_table("a", **config(dim=16, optimizer=OPTIMIZERS["adam"]))
    for options in (
        {"cache_bytes": 32 << 20, "policy": "lfu", "threads": 1},
        {"cache_bytes": 32 << 10, "policy": "lru", "threads": 3},
        {"device": "cpu", "checkpoints_keep": 1},
    ):
        twin.on("a", "update", *batch(rng, 200, dim=16))
        twin.reopen(**options)
        twin.check()


def test_a_store_without_changes_is_left_as_it_was(backend):
    store = backend.open_store()
    store.create_table("a", **config())
    store.close()
    before = (backend.path() / "CATALOGUE").read_bytes()
    store = backend.open_store()
    store.table("a").lookup([1])
    store.close()
    assert (backend.path() / "CATALOGUE").read_bytes() == before


def test_the_with_statement_closes_also_after_an_error(backend):
    with pytest.raises(RuntimeError), backend.open_store() as store:
        store.create_table("a", **config()).update([1], ones(1))
        raise RuntimeError
    with backend.open_store() as store:
        assert store.table("a").t == 1


def test_closing_twice_is_harmless(backend):
    store = backend.open_store()
    store.close()
    store.close()


STORE_CALLS = {
    "create_table": lambda s: s.create_table("b", **config()),
    "table": lambda s: s.table("a"),
    "tables": lambda s: s.tables(),
    "drop_table": lambda s: s.drop_table("a"),
    "lookup": lambda s: s.lookup({"a": [1]}),
    "update": lambda s: s.update({"a": ([1], ones(1))}),
    "update_ranks": lambda s: s.update_ranks([{"a": ([1], ones(1))}]),
    "checkpoint": lambda s: s.checkpoint("c"),
    "checkpoints": lambda s: s.checkpoints(),
    "restore": lambda s: s.restore("c"),
    "flush": lambda s: s.flush(),
    "stats": lambda s: s.stats(),
    "check_integrity": lambda s: s.check_integrity(),
}
TABLE_CALLS = {
    "dim": lambda t: t.dim,
    "rows": lambda t: t.rows,
    "t": lambda t: t.t,
    "optimizer": lambda t: t.optimizer,
    "initializer": lambda t: t.initializer,
    "seed": lambda t: t.seed,
    "learning_rate": lambda t: t.learning_rate,
    "set learning_rate": lambda t: setattr(t, "learning_rate", 0.5),
    "lookup": lambda t: t.lookup([1]),
    "lookup_pooled": lambda t: t.lookup_pooled([1], [0, 1]),
    "read_rows": lambda t: t.read_rows([1]),
    "update": lambda t: t.update([1], ones(1)),
    "update_pooled": lambda t: t.update_pooled([1], [0, 1], ones(1)),
    "update_ranks": lambda t: t.update_ranks([([1], ones(1))]),
    "assign": lambda t: t.assign([1], ones(1)),
    "put_rows": lambda t: t.put_rows([1], ones(1), np.empty((1, 0), np.float32), 1),
    "grow": lambda t: t.grow(2000),
    "flush": lambda t: t.flush(),
    "digest": lambda t: t.digest(),
    "stats": lambda t: t.stats(),
}


def test_every_call_after_closing_says_so(backend):
    store = backend.open_store()
    table = store.create_table("a", **config())
    store.close()
    for name, call in STORE_CALLS.items():
        with pytest.raises(StoreClosedError, match="closed"):
            raise AssertionError(f"{name} was answered: {call(store)}")
    for name, call in TABLE_CALLS.items():
        with pytest.raises(StoreClosedError, match="closed"):
            raise AssertionError(f"{name} was answered: {call(table)}")
    assert "a" in repr(table)


def test_rows_looked_up_outlive_the_store(backend):
    store = backend.open_store()
    table = store.create_table("a", **config())
    table.assign([1], ones(1))
    rows, (weights, _) = table.lookup([1]), table.read_rows([1])
    store.close()
    assert_same(rows, ones(1))
    assert_same(weights, ones(1))


def test_refused_calls_after_closing_change_nothing(backend):
    store = backend.open_store()
    table = store.create_table("a", **config())
    store.close()
    for call in TABLE_CALLS.values():
        with pytest.raises(StoreClosedError):
            call(table)
    with backend.open_store() as store:
        assert (store.command, store.table("a").t) == (1, 0)
