"""Answers to clients, kept by commits and the command log over a crash.

A repeated call gets the same answer, or is told that its outcome is not known.
"""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

import embstore
from embstore import commands as c
from embstore.errors import OutcomeUnknownError
from embstore.tables import answers as log_answers
from embstore_proto.envelope import Origin
from embstore_server.path.replay import ReplayWindow
from tests.conformance.backends import UnsyncedFiles
from tests.copies import copy_of_open
from tests.unit.logged_stores import LOGGED, TABLES, killed, made, opened, state

NOTHING = log_answers.Answer("Update", None, None)


@pytest.fixture
def store(tmp_path):
    with made(tmp_path / "store") as here:
        yield here


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
            ("a", 1, "has left the deduplication window"),
            ("a", 900, "has left the deduplication window"),
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
