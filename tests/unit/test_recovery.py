"""Opening after a crash: every verb that writes is executed again, and comes to the same."""

import os
from dataclasses import replace

import numpy as np
import pytest

from embstore import commands as c
from embstore.config import Limits
from embstore.engine import rows
from embstore.errors import StoreClosedError
from embstore.results import Place
from embstore.tables import tables
from tests.unit.logged_stores import TABLES, check_kill, killed, made, opened, share, state, train


@pytest.fixture
def store(tmp_path):
    with made(tmp_path / "store") as here:
        yield here


def everything(store, rng):
    """Yield after each verb that writes."""
    a, b = store.table("a"), store.table("b")
    train(store, rng)
    yield "update"
    a.update([1, 2], np.full((2, 4), np.nan, np.float32), on_nonfinite="skip")
    yield "skipped update"
    keys, rows = share(rng, a, 6)
    a.update_pooled(keys, np.array([0, 2, 6]), rows[:2], mode="mean")
    yield "pooled"
    store.update_ranks([{"a": share(rng, a)}, {"b": share(rng, b)}], gradient_scale=0.5)
    yield "ranks"
    a.assign(*share(rng, a))
    keys, rows = share(rng, b)
    b.put_rows(keys, rows, np.concatenate([rows, rows], axis=1), 7)
    yield "rows that were set"
    a.grow(600)
    a.learning_rate = 0.3
    train(store, rng)
    yield "tunables"
    store.drop_table("c")
    store.create_table("d", **TABLES["c"])
    store.create_table("a", **(TABLES["a"] | {"rows": 600, "optimizer": a.optimizer}))
    store.table("d").update(*share(rng, store.table("d")))
    yield "tables"
    store.checkpoint("one")
    yield "checkpoint"
    train(store, rng)
    store.restore("one")
    yield "restore"
    store.table("d").update(*share(rng, store.table("d")))
    store.executor.commits.commit()
    yield "commit"
    train(store, rng)
    yield "update again"


def test_every_verb_is_executed_again(tmp_path):
    rng = np.random.default_rng(3)
    store = made(tmp_path / "store")
    seen = []
    for what in everything(store, rng):
        seen.append(what)
        check_kill(store, tmp_path / "store")
    assert len(seen) == 11
    store.close()
    check_kill(opened(tmp_path / "store"), tmp_path / "store")


@pytest.mark.parametrize("level", ["checkpoint", "interval", "commands"])
def test_a_store_may_be_opened_at_another_level(tmp_path, level):
    rng = np.random.default_rng(4)
    store = made(tmp_path / "store")
    train(store, rng)
    store.checkpoint("one")
    train(store, rng)
    before = state(store)
    again = killed(store, tmp_path / "store", durability=level)
    assert state(again) == before
    train(again, rng)
    after = state(again)
    path = again.executor.storage.files.root
    third = killed(again, path, durability="checkpoint")
    if level == "checkpoint":
        assert state(third)[0] == before[0]
        assert third.epoch == before[1] + 1
    else:
        assert (state(third)[0], state(third)[2]) == (after[0], after[2])
        assert third.epoch == before[1] + (level == "interval")
    third.close()
    again.close()
    store.close()
    assert not os.listdir(third.executor.storage.files.root / "commands")


def rank_of(store, name, world_size=1, rank=0):
    store.execute(c.OpenSession(name, ("a", "b"), world_size=world_size))
    return store.execute(c.JoinSession(name, rank)).member


def announce(store, member, rng, step):
    keys = {n: np.unique(rng.integers(0, TABLES[n]["rows"], 9)) for n in ("a", "b")}
    parts = tuple(c.StepTable(name, k) for name, k in keys.items())
    store.execute(c.Announce(member, (c.StepKeys(step, parts),)))
    positions = {"a": None, "b": np.arange(0, len(keys["b"]), 2, dtype=np.uint32)}
    counts = {"a": len(keys["a"]), "b": len(positions["b"])}
    return tuple(
        c.StepGradients(
            n, rng.standard_normal((counts[n], TABLES[n]["dim"])).astype(np.float32), positions[n]
        )
        for n in keys
    )


@pytest.mark.parametrize("world_size", [1, 2])
def test_steps_and_places_are_executed_again(store, tmp_path, world_size):
    rng = np.random.default_rng(5)
    execute = store.executor.begin
    run = type("Run", (), {"execute": staticmethod(store.executor.execute)})
    members = [rank_of(run, "s", world_size, rank) for rank in range(world_size)]
    path = tmp_path / "store"

    def finish(step, make):
        sent = [announce(run, m, rng, step) for m in members]
        for member, gradients in zip(members, sent, strict=True):
            execute(make(member, step, gradients))
        check_kill(store, path)

    options = c.UpdateOptions(learning_rate=0.5)
    finish(1, lambda m, s, g: c.UpdateStep(m, s, g, options))
    finish(2, lambda m, s, g: c.ReleaseStep(m, s))
    finish(3, lambda m, s, g: c.SkipStep(m, s))
    finish(4, lambda m, s, g: c.UpdateStep(m, s, g))
    assert {name: place.step for name, place in store.executor.tables.places.items()} == {"s": 4}
    if world_size == 1:
        put = c.StepPut(
            "a", np.arange(3), np.ones((3, 4), np.float32), np.ones((3, 1), np.float32), 2
        )
        run.execute(c.PutStepRows(members[0], (put,)))
        check_kill(store, path)
    for member in members:
        run.execute(c.CloseSession(member, forget=True))
    assert not store.executor.tables.places
    check_kill(store, path)


def test_one_owner_forgets_its_own_places_and_so_it_does_again(tmp_path, monkeypatch):
    """Whichever commands a commit had before the kill."""
    monkeypatch.setattr(tables, "PLACES_MAX", 6)
    rng = np.random.default_rng(6)
    path = tmp_path / "store"
    store = made(path)
    run = type("Run", (), {"execute": staticmethod(store.executor.execute)})

    def step(name):
        member = rank_of(run, name)
        number = store.executor.tables.places.get(name, Place(0)).step + 1
        announce(run, member, rng, number)
        run.execute(c.SkipStep(member, number))
        run.execute(c.CloseSession(member))

    for name in ("z:1", "quiet:b", "quiet:a", "nobody's"):
        step(name)
    for n in range(9):
        step(f"greedy:{9 - n}")
        if n == 5:
            store.executor.commits.commit()
        places = list(store.executor.tables.places.items())
        with killed(store, path) as again:
            assert list(again.executor.tables.places.items()) == places
    mine = [name for name, _ in places if not name.startswith("greedy:")]
    assert mine == ["z:1", "quiet:b", "quiet:a", "nobody's"]
    for n in range(3):  # equally many of several: the oldest of all
        step(f"other:{n}")
    assert [name for name, _ in store.executor.tables.places.items()] == [
        "z:1", "quiet:a", "nobody's", "greedy:1", "other:1", "other:2"
    ]  # fmt: skip
    check_kill(store, path)
    store.close()


def test_limits_that_were_lowered_refuse_nothing_again(store, tmp_path):
    rng = np.random.default_rng(6)
    train(store, rng)
    low = Limits(tables_max=1, call_bytes_max=1)
    with killed(store, tmp_path / "store", limits=low) as again:
        assert state(again) == state(store)


def test_a_full_row_log_is_committed_in_between(tmp_path):
    """When the commands were executed first, commits and folds came in between."""
    rng = np.random.default_rng(7)
    store = made(tmp_path / "store", cache_bytes=60_000)
    for _ in range(30):
        train(store, rng, 1)
    limits = Limits(log_rows_max=150, fold_segments=1, fold_bytes=1)
    with killed(store, tmp_path / "store", limits=limits, cache_bytes=60_000) as again:
        assert state(again) == state(store)
        assert again.stats()["storage"]["commit"] > 0
    store.close()


def test_a_header_as_long_as_a_file_is_read_again(store, tmp_path):
    """A step of thousands of ranks is one record, though no client may send one so long."""
    part = c.TableGradients("a", None, np.arange(1), np.ones((1, 4), np.float32))
    ranks = tuple(c.Rank((replace(part, keys=np.arange(i % 7, i % 7 + 1)),)) for i in range(4096))
    few = ranks[:7] * 585 + ranks[:1]
    store.executor.execute(c.UpdateRanks(few))
    header = store.executor.log._codec.parts(c.UpdateRanks(few), None, None)[0]
    assert len(header) > 100_000
    check_kill(store, tmp_path / "store")


@pytest.mark.parametrize("level", ["interval", "commands"])
def test_an_interrupted_call_has_read_its_arrays(tmp_path, monkeypatch, level):
    store = made(tmp_path / "store", durability=level)
    table, ones = store.table("a"), np.ones((5, 4), np.float32)
    log = store.executor.log

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(log, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        table.assign(np.arange(5), ones)
    assert log.files.written == log.files.appended
    ones[:] = 7
    monkeypatch.undo()
    with killed(store, tmp_path / "store", durability="commands") as again:
        assert again.table("a").digest() == table.digest()
    store.close()


def test_what_a_signal_handler_raises_in_a_command_fails_the_store(store, tmp_path, monkeypatch):
    before = state(store)

    class AlarmError(Exception):
        pass

    def alarmed(*_):
        raise AlarmError

    monkeypatch.setattr(rows, "_acknowledged", alarmed)
    with pytest.raises(AlarmError):
        store.table("a").update(np.arange(5), np.ones((5, 4), np.float32))
    with pytest.raises(StoreClosedError, match="open it again"):
        store.table("a").lookup([0])
    with killed(store, tmp_path / "store") as again:
        assert state(again) == before


def test_a_store_whose_log_was_only_read_commits_nothing(tmp_path):
    """With recovery_s = 0 it once tried again and again."""
    store = made(tmp_path / "store", recovery_s=0.0)
    store.executor.commits.commit()
    with killed(store, tmp_path / "store", recovery_s=0.0) as again:
        assert again.executor.commits.due_in_s() is None
    store.close()
