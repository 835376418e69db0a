"""Calls on a store that is closed or read-only, and on a table that is gone."""

import numpy as np
import pytest

from embstore.errors import PermissionDeniedError, StoreClosedError
from tests.conformance.cases import config, ones, refused

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
    "set_retention": lambda s: s.set_retention("c", "dropped"),
    "restore": lambda s: s.restore("c"),
    "flush": lambda s: s.flush(),
    "resize_cache": lambda s: s.resize_cache(1 << 22),
    "set_policy": lambda s: s.set_policy("lfu"),
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
READS = set(
    "table tables lookup checkpoints flush resize_cache set_policy stats check_integrity dim rows "
    "t optimizer initializer seed learning_rate lookup_pooled read_rows digest".split()
)


def test_every_call_after_closing_says_so(backend):
    store = backend.open_store()
    table = store.create_table("a", **config())
    store.close()
    for calls, called in ((STORE_CALLS, store), (TABLE_CALLS, table)):
        for name, call in calls.items():
            with pytest.raises(StoreClosedError, match="closed"):
                raise AssertionError(f"{name} was answered: {call(called)}")
    assert "a" in repr(table)
    with backend.open_store() as store:
        assert (store.command, store.table("a").t) == (1, 0)


def test_every_write_to_a_reader_is_refused(open_twin):
    twin = open_twin(a=config())
    twin.checkpoint("c")
    twin.reopen(read_only=True)
    store, table = twin.store, twin.store.table("a")
    writes = [(name, call, store) for name, call in STORE_CALLS.items() if name not in READS]
    writes += [(name, call, table) for name, call in TABLE_CALLS.items() if name not in READS]
    writes.append(("create_table again", lambda s: s.create_table("a", **config()), store))
    writes.append(("no key", lambda t: t.update([], np.empty((0, 4), np.float32)), table))
    for name, call, called in writes:
        with refused(store, PermissionDeniedError, "read_only"):
            call(called)
            raise AssertionError(f"{name} was taken")
