"""Opening after a crash: every verb that writes is executed again, and comes to the same."""

import asyncio
import os
from dataclasses import replace

import numpy as np
import pytest

import embstore
from embstore import Adam, Normal, RowWiseAdagrad, Uniform
from embstore import commands as c
from embstore.config import Limits
from embstore.engine import rows
from embstore.errors import OutcomeUnknownError, StoreClosedError
from embstore.results import Place
from embstore.tables import answers as log_answers
from embstore.tables import tables
from embstore_proto.envelope import Origin
from embstore_server.path.replay import ReplayWindow
from tests.conformance.backends import UnsyncedFiles
from tests.copies import copy_of_open

NOTHING = log_answers.Answer("Update", None, None)
LOGGED = {"durability": "commands", "cache_bytes": 1 << 20, "commit_every_s": 0.0}
DECAYED = (
    Adam(0.01, weight_decay=0.1, decoupled_weight_decay=True),
    RowWiseAdagrad(0.2, weight_decay=0.1),
)
TABLES = {
    "a": {"dim": 4, "rows": 500, "optimizer": RowWiseAdagrad(0.1), "initializer": Uniform(-1, 1)},
    "b": {"dim": 8, "rows": 300, "optimizer": DECAYED[0], "initializer": Normal(0, 0.1)},
    "c": {"dim": 4, "rows": 200, "optimizer": DECAYED[1], "initializer": Uniform(0, 1)},
}


def opened(path, **options):
    return embstore.open(path, files=UnsyncedFiles(path), **(LOGGED | options))


def made(path, **options):
    store = opened(path, **options)
    for name, config in TABLES.items():
        store.create_table(name, **config)
    return store


@pytest.fixture
def store(tmp_path):
    with made(tmp_path / "store") as here:
        yield here


def share(rng, table, count=20):
    keys = rng.integers(0, table.rows, count)
    return keys, rng.standard_normal((count, table.dim)).astype(np.float32)


def state(store):
    tables = {}
    for name in store.tables():
        table = store.table(name)
        facts = (table.t, table.rows, table.learning_rate, table.digest())
        tables[name] = (store.executor.tables.find(name).table_id, *facts)
    return store.command, store.epoch, tables, dict(store.executor.tables.places)


def killed(store, path, **options):
    """Return the store as it opens after a kill at this moment.

    What the log's thread has begun to write is written first: of a file that is written to, a copy
    may have a later record without an earlier one, which no kill leaves.
    """
    if (log := store.executor.log) is not None:
        log.files.wait(log.files.appended, written=True)
    copy = path.with_name(f"{path.name}-{len(os.listdir(path.parent))}")
    copy_of_open(path, copy)
    return opened(copy, **options)


def check_kill(store, path, **options):
    with killed(store, path, **options) as again:
        assert state(again) == state(store)
        again.check_integrity()


def train(store, rng, rounds=3):
    a, b = store.table("a"), store.table("b")
    for _ in range(rounds):
        store.update({"a": share(rng, a), "b": share(rng, b)})
        a.update(*share(rng, a), learning_rate=0.5, gradient_scale=0.25)


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


def origin(sequence, finished_below=1):
    return Origin("client", sequence, finished_below)


def calls_of(engine):
    return engine.log.memory.answers.clients["client"].calls


def test_answers_are_kept_over_kills_and_commits(tmp_path):
    store = made(tmp_path / "store")
    engine, one = store.executor, np.ones((1, 4), np.float32)
    part = c.TableGradients("a", None, np.arange(1), one)
    answers = {n: engine.begin(c.Update((part,)), origin=origin(n)) for n in range(1, 5)}
    engine.log.wait()

    def kept(engine):
        return {n: (a.verb, a.result) for n, a in calls_of(engine).items()}

    expected = {n: ("Update", answer) for n, answer in answers.items()}
    with killed(store, tmp_path / "store") as again:
        assert kept(again.executor) == expected
        assert again.executor.log.memory.instance == engine.log.memory.instance
    engine.commits.commit()
    with killed(store, tmp_path / "store") as again:
        assert kept(again.executor) == expected
        assert again.executor.recovered_commands == 0
    label = engine.begin(c.Checkpoint("one", {}), origin=origin(5))
    five = engine.begin(c.Restore("one"), origin=origin(6, finished_below=3))
    expected = {n: expected[n] for n in (3, 4)}
    expected |= {5: ("Checkpoint", label), 6: ("Restore", None)}
    assert five.command == engine.tables.frame.command_number
    engine.log.wait()
    with killed(store, tmp_path / "store") as again:
        found = kept(again.executor)
        assert found.keys() == expected.keys()
        assert found[5][1].label == "one"
        assert found[6] == expected[6]
    store.close()
    again = opened(tmp_path / "store")
    assert kept(again.executor).keys() == expected.keys()
    again.close()


def test_an_answer_that_nobody_knows_is_told_to_be_so(store, tmp_path):
    """A restore has what came before it, and so it is not executed again."""
    store.checkpoint("one")
    part = c.TableGradients("a", None, np.arange(1), np.ones((1, 4), np.float32))
    store.executor.begin(c.Update((part,)), origin=origin(1))
    store.executor.log.wait()
    store.restore("one")
    copy = tmp_path / "copy"
    copy_of_open(tmp_path / "store", copy)
    with opened(copy) as again:
        assert state(again) == state(store)
        answers = again.executor.log.memory.answers
        calls = calls_of(again.executor)
        assert [(n, a.verb, a.result) for n, a in calls.items()] == [(1, "Update", None)]
        window = ReplayWindow(None, "instance")

        async def send_again():
            window.recall(answers)
            await window.call("Update", replace(origin(1), attempt=1), 1, None)

        with pytest.raises(OutcomeUnknownError, match="was applied"):
            asyncio.run(send_again())
        again.executor.commits.commit()
        with killed(again, copy) as third:
            assert [a.result for a in calls_of(third.executor).values()] == [None]


def test_a_checkpoint_that_was_cut_short_is_answered_if_it_was_made(tmp_path):
    """Killed right after the rename, before anybody could be answered; or right before it."""
    copies = {}

    class Copying(UnsyncedFiles):
        def reached(self, point):
            if point.startswith("commit:") and "one" in labels:
                copies[point] = tmp_path / point.replace(":", "-")
                copy_of_open(self.root, copies[point])

    labels = []
    path = tmp_path / "store"
    store = embstore.open(path, files=Copying(path), **LOGGED)
    store.create_table("a", **TABLES["a"])
    labels.append("one")
    made = store.executor.begin(c.Checkpoint("one", {"step": 1}), origin=origin(1))
    with opened(copies["commit:synced"]) as again:
        assert not again.checkpoints()
        assert not again.executor.log.memory.answers.clients
    with opened(copies["commit:renamed"]) as again:
        assert calls_of(again.executor)[1].result == made.without_metadata
    store.close()


def test_floors_and_doubts_are_kept(tmp_path, monkeypatch):
    """What was forgotten is forgotten after a restart too: it is not run again."""
    monkeypatch.setattr(log_answers, "CLIENTS_MAX", 2)
    store = made(tmp_path / "store")
    part = c.TableGradients("a", None, np.arange(1), np.ones((1, 4), np.float32))
    for name, sequence in (("old", 1), ("a", 1), ("a", 2000), ("b", 7)):
        store.executor.begin(c.Update((part,)), origin=replace(origin(sequence), client_id=name))
    store.executor.commits.commit()
    store.executor.log.wait()
    with killed(store, tmp_path / "store") as again:
        answers = again.executor.log.memory.answers
        assert answers.forgotten == {""}
        window = ReplayWindow(None, "instance")

        async def send_again(name, sequence):
            window.recall(answers)
            sent = Origin(name, sequence, 1, attempt=1, instance="instance", epoch=1)
            await window.call("Update", sent, 1, None)

        for name, sequence, reason in (
            ("old", 1, "may have been forgotten"),
            ("a", 1, "has been forgotten"),
            ("a", 900, "has been forgotten"),
        ):
            with pytest.raises(OutcomeUnknownError, match=reason):
                asyncio.run(send_again(name, sequence))
    store.close()


def test_one_owner_forgets_its_own_answers_and_so_it_does_again(tmp_path, monkeypatch):
    monkeypatch.setattr(log_answers, "CLIENTS_MAX", 4)
    store = made(tmp_path / "store")
    part = c.TableGradients("a", None, np.arange(1), np.ones((1, 4), np.float32))
    for n, name in enumerate(["z:1", "quiet:1", *(f"greedy:{9 - n}" for n in range(6)), "z:1"]):
        sent = replace(origin(n + 1), client_id=name)
        store.executor.begin(c.Update((part,)), origin=sent)
        if n == 4:
            store.executor.commits.commit()
        store.executor.log.wait()
        answers = store.executor.log.memory.answers
        with killed(store, tmp_path / "store") as again:
            memory = again.executor.log.memory
            assert list(memory.answers.clients) == list(answers.clients)
            assert memory.answers.forgotten == answers.forgotten
    assert list(answers.clients) == ["quiet:1", "greedy:5", "greedy:4", "z:1"]
    assert answers.forgotten == {"greedy"}
    store.close()


def test_one_owner_forgets_its_own_answers_where_answers_are_too_many(monkeypatch):
    monkeypatch.setattr(log_answers, "ANSWERS_BYTES_MAX", 10 * log_answers.ANSWER_BYTES)
    answers = log_answers.Answers()

    def add(client, *sequences):
        for sequence in sequences:
            answers.add(replace(origin(sequence), client_id=client), NOTHING)

    add("quiet:1", 1, 2)
    add("quiet:2", 1)
    add("greedy:1", *range(1, 6))
    add("greedy:2", *range(1, 6))
    assert list(answers.clients) == ["quiet:1", "quiet:2", "greedy:2"]
    add("greedy:2", *range(6, 10))  # it has most, and is at work: the next one's oldest is
    assert list(answers.clients) == ["quiet:2", "greedy:2"]
    assert answers.forgotten == {"greedy", "quiet"}


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
    with pytest.raises(StoreClosedError, match="must be opened again"):
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


def test_answers_of_all_clients_are_bounded(monkeypatch):
    """Each commit writes them, with the engine."""
    monkeypatch.setattr(log_answers, "ANSWERS_BYTES_MAX", 10 * log_answers.ANSWER_BYTES)
    answers = log_answers.Answers()
    for client in range(5):
        for sequence in range(1, 4):
            sent = replace(origin(sequence), client_id=f"client-{client}")
            answers.add(sent, NOTHING)
            answers.add(sent, NOTHING)
    assert list(answers.clients) == ["client-2", "client-3", "client-4"]
    assert answers.forgotten == {""}
    answers.add(replace(origin(4, finished_below=4), client_id="client-2"), NOTHING)
    assert [len(client.calls) for client in answers.clients.values()] == [3, 3, 1]
    answers.add(replace(origin(1), client_id="new"), NOTHING)
    assert list(answers.clients) == ["client-3", "client-4", "client-2", "new"]
