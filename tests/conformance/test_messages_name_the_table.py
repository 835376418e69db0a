"""A message says in which table (style.md, section 4): the line of a log has no call beside it."""

import pytest

from embstore.errors import EmbstoreError
from tests.conformance.cases import config, ones

CALLS = {
    "rows": lambda s, t: s.create_table("new", **config(rows=-1)),
    "seed": lambda s, t: s.create_table("new", **config(seed=-1)),
    "dim": lambda s, t: s.create_table("new", **config(dim=0)),
    "grow": lambda s, t: t.grow(-1),
    "learning_rate of the table": lambda s, t: setattr(t, "learning_rate", -1),
    "weights with mean": lambda s, t: t.lookup_pooled([1], [0, 1], "mean", ones(1, 1)[0]),
    "mode": lambda s, t: t.lookup_pooled([1], [0, 1], "max"),
    "offsets": lambda s, t: t.lookup_pooled([1], [0, 2]),
    "a handle of a dropped table": lambda s, t: (s.drop_table("new"), t.lookup([1])),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_of_a_call_on_one_table(backend, call):
    store = backend.open_store()
    table = store.create_table("new", **config())
    with pytest.raises(EmbstoreError, match="table 'new'"):
        call(store, table)


def test_of_a_pool_that_the_cache_cannot_hold(backend):
    store = backend.open_store(cache_bytes=20_000)
    with pytest.raises(EmbstoreError, match="table 'new'"):
        store.create_table("new", **config(dim=4096))


@pytest.mark.needs("directory")
def test_of_a_damaged_record(backend):
    """The id of a table is the store's own affair."""
    with backend.open_store() as store:
        store.create_table("new", **config()).update([1], ones(1))
    (segment,) = (backend.path() / "log").iterdir()
    data = bytearray(segment.read_bytes())
    data[4096 + 16] ^= 1
    segment.write_bytes(data)
    with pytest.raises(EmbstoreError, match="'new'"):
        backend.open_store().table("new").lookup([1])
