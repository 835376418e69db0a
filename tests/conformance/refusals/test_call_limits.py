"""Calls over limits.call_bytes_max: refused by every verb, by name, before anything is done."""

import numpy as np
import pytest

from embstore.config import Adam, Limits
from embstore.errors import InvalidArgumentError
from tests.conformance.cases import config, ones, refused

COUNT = 65_536 // (8 + 4 * 4)
"""Keys of a call that just fits: eight bytes a key, four an element of its row."""


@pytest.fixture
def store(backend):
    store = backend.open_store(limits=Limits(call_bytes_max=1 << 16))
    for name in "ab":
        store.create_table(name, **config(optimizer=Adam(0.1)))
    return store


def calls(store, count):
    """Yield every verb with so many keys."""
    a, keys, rows = store.table("a"), np.zeros(count, int), ones(count)
    half = count // 2
    parts = {"a": (keys[:half], rows[:half]), "b": (keys[half:], rows[half:])}
    yield lambda: a.lookup(keys)
    yield lambda: a.lookup(keys, admit=False, out=np.empty((count, 4), np.float32))
    yield lambda: a.update(keys, rows)
    yield lambda: a.update(keys, rows.astype(np.float16))
    yield lambda: a.update_ranks([parts["a"], parts["b"]])
    yield lambda: a.assign(keys, rows)
    yield lambda: store.lookup({"a": keys[:half], "b": keys[half:]})
    yield lambda: store.update(parts)
    yield lambda: store.update_ranks([{"a": parts["a"]}, {"b": parts["b"]}])


def test_one_key_too_many_is_refused_by_every_verb(store):
    parts = ("65536 bytes", "limits.call_bytes_max", str((COUNT + 1) * 24), "split")
    for call in calls(store, COUNT + 1):
        with refused(store, InvalidArgumentError, *parts):
            call()


def test_as_many_as_fit_are_answered(store):
    for call in calls(store, COUNT):
        call()
    store.check_integrity()


def test_state_counts_as_well(store):
    table, count = store.table("a"), 65_536 // (8 + 4 * 4 + 4 * 8) + 1
    with refused(store, InvalidArgumentError, "limits.call_bytes_max"):
        table.read_rows(np.zeros(count, int))
    with refused(store, InvalidArgumentError, "limits.call_bytes_max"):
        table.put_rows(np.zeros(count, int), ones(count), ones(count, 8), 1)
    table.read_rows(np.zeros(count - 1, int))


def test_bags_count_as_well(store):
    table, bounds = store.table("a"), np.zeros(5000, int)
    with refused(store, InvalidArgumentError, "limits.call_bytes_max"):
        table.lookup_pooled([], bounds)
    with refused(store, InvalidArgumentError, "limits.call_bytes_max"):
        table.update_pooled([], bounds, ones(4999))
    keys = np.zeros(COUNT + 1, int)
    with refused(store, InvalidArgumentError, "limits.call_bytes_max"):
        table.lookup_pooled(keys, [0, len(keys)])
    with refused(store, InvalidArgumentError, "limits.call_bytes_max"):
        table.update_pooled(keys, [0, len(keys)], ones(1))


def test_limits_are_told(store):
    assert store.limits == Limits(call_bytes_max=1 << 16)
