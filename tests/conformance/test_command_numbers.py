"""Command numbers: dense, increasing, and only for what was acknowledged (rule 5)."""

import numpy as np
import pytest

from embstore.errors import EmbstoreError
from tests.conformance.cases import config, ones

NO_STATE = np.empty((1, 0), np.float32)
COMMANDS = {
    "create_table": lambda s, t: s.create_table("b", **config()),
    "create_table again": lambda s, t: s.create_table("a", **config()),
    "drop_table": lambda s, t: s.drop_table("a"),
    "restore": lambda s, t: s.restore("c"),
    "set learning_rate": lambda s, t: setattr(t, "learning_rate", 0.5),
}
ACKNOWLEDGED = {
    "grow": lambda s, t: t.grow(2000),
    "update": lambda s, t: t.update([1], ones(1)),
    "update of nothing": lambda s, t: t.update([], np.empty((0, 4), np.float32)),
    "update skipped": lambda s, t: t.update([1], ones(1, 4, np.nan), on_nonfinite="skip"),
    "update_pooled": lambda s, t: t.update_pooled([1], [0, 1], ones(1)),
    "update_ranks": lambda s, t: t.update_ranks([([1], ones(1))]),
    "assign": lambda s, t: t.assign([1], ones(1)),
    "assign of nothing": lambda s, t: t.assign([], np.empty((0, 4), np.float32)),
    "put_rows": lambda s, t: t.put_rows([1], ones(1), NO_STATE, 3),
    "update of tables": lambda s, t: s.update({"a": ([1], ones(1))}),
    "update of no table": lambda s, t: s.update({}),
    "update_ranks of tables": lambda s, t: s.update_ranks([{"a": ([1], ones(1))}]),
}
NO_COMMANDS = {
    "lookup": lambda s, t: t.lookup([1]),
    "lookup_pooled": lambda s, t: t.lookup_pooled([1], [0, 1]),
    "read_rows": lambda s, t: t.read_rows([1]),
    "digest": lambda s, t: t.digest(),
    "flush": lambda s, t: s.flush(),
    "stats": lambda s, t: s.stats(),
    "checkpoint": lambda s, t: s.checkpoint("d"),
    "check_integrity": lambda s, t: s.check_integrity(),
}
REFUSED = {
    "create_table": lambda s, t: s.create_table("a", **config(dim=5)),
    "drop_table": lambda s, t: s.drop_table("b"),
    "restore": lambda s, t: s.restore("d"),
    "update": lambda s, t: t.update([1], ones(1, 4, np.nan)),
    "update_ranks": lambda s, t: t.update_ranks([([1000], ones(1))]),
    "assign": lambda s, t: t.assign([1], ones(2)),
    "put_rows": lambda s, t: t.put_rows([1], ones(1), NO_STATE, -1),
    "grow": lambda s, t: t.grow(5),
    "set learning_rate": lambda s, t: setattr(t, "learning_rate", -1),
    "checkpoint": lambda s, t: s.checkpoint("c"),
}


@pytest.fixture
def store(backend):
    with backend.open_store() as store:
        store.create_table("a", **config())
        store.checkpoint("c")
        yield store
        store.check_integrity()


@pytest.mark.parametrize("call", COMMANDS.values(), ids=COMMANDS)
def test_a_command_takes_the_next_number(store, call):
    call(store, store.table("a"))
    assert store.command == 2


@pytest.mark.parametrize("call", ACKNOWLEDGED.values(), ids=ACKNOWLEDGED)
def test_a_reply_has_the_number_of_its_command(store, call):
    assert call(store, store.table("a")).command == store.command == 2
    assert call(store, store.table("a")).command == store.command == 3


@pytest.mark.parametrize("call", NO_COMMANDS.values(), ids=NO_COMMANDS)
def test_what_changes_no_content_takes_none(store, call):
    call(store, store.table("a"))
    assert store.command == 1


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_takes_none(store, call):
    with pytest.raises(EmbstoreError):
        call(store, store.table("a"))
    assert store.command == 1


def test_an_empty_store_has_had_none(backend):
    with backend.open_store() as store:
        assert store.command == 0


def test_numbers_go_on_after_reopening(backend):
    for number in range(1, 4):
        with backend.open_store() as store:
            table = store.create_table("a", **config())
            assert table.update([1], ones(1)).command == 2 * number
