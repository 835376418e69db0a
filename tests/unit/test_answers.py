"""Answers that are kept for calls that are sent again take a bounded number of bytes."""

import asyncio
from dataclasses import replace

import pytest

import embstore
from embstore import commands as c
from embstore.engine.engine import Engine
from embstore.errors import OutcomeUnknownError
from embstore.results import AcknowledgedUpdate, Context
from embstore.tables import answers as log_answers
from embstore.tables.answers import ANSWER_BYTES, Answer, Answers
from embstore_proto.envelope import Origin
from embstore_server.path import replay
from embstore_server.path.answers import Answered
from embstore_server.path.replay import ReplayWindow
from embstore_server.path.worker import Task
from tests.conformance.backends import UnsyncedFiles

LONG_BYTES = 1000
CONTEXT = Context("store", 1, 1, "instance")


def origin(client, sequence, **of):
    return Origin(client, sequence, **({"finished_below": 1} | of))


def long_answer():
    """Return the answer of an update of tables with long names."""
    return Answer("Update", AcknowledgedUpdate(1, {"n" * (LONG_BYTES - 24): 1}), CONTEXT)


@pytest.fixture
def bounds(monkeypatch):
    """Room for four long answers of a client, and for ten of all."""
    size = ANSWER_BYTES + LONG_BYTES
    for module in (log_answers, replay):
        monkeypatch.setattr(module, "CLIENT_BYTES_MAX", 4 * size)
        monkeypatch.setattr(module, "ANSWERS_BYTES_MAX", 10 * size)


def kept(answers):
    return {name: sorted(client.calls) for name, client in answers.clients.items()}


@pytest.mark.usefixtures("bounds")
def test_a_client_loses_the_lowest_of_its_long_answers():
    answers = Answers()
    for sequence in range(1, 8):
        answers.add(origin("one", sequence), long_answer())
    assert kept(answers) == {"one": [4, 5, 6, 7]}
    assert answers.clients["one"].floor == 4
    for _ in range(3):
        answers.add(origin("one", 7), long_answer())
    assert kept(answers) == {"one": [4, 5, 6, 7]}
    answers.add(origin("one", 8, finished_below=8), Answer("Update", None, CONTEXT))
    assert answers.clients["one"].bytes == ANSWER_BYTES


@pytest.mark.usefixtures("bounds")
def test_the_owner_of_most_bytes_loses_its_oldest_client():
    answers = Answers()
    answers.add(origin("quiet:1", 1), Answer("Update", None, CONTEXT))
    for client in range(1, 5):
        for sequence in range(1, 5):
            answers.add(origin(f"greedy:{client}", sequence), long_answer())
    assert kept(answers) == {"quiet:1": [1], "greedy:3": [1, 2, 3, 4], "greedy:4": [1, 2, 3, 4]}
    assert answers.forgotten == {"greedy"}


def test_one_answer_is_kept_however_long_it_is(monkeypatch):
    monkeypatch.setattr(log_answers, "CLIENT_BYTES_MAX", 1)
    monkeypatch.setattr(log_answers, "ANSWERS_BYTES_MAX", 1)
    answers = Answers()
    for sequence in (1, 2):
        answers.add(origin("one", sequence), long_answer())
    assert kept(answers) == {"one": [2]}


@pytest.mark.usefixtures("bounds")
def test_the_replay_window_has_the_same_bounds():
    window = ReplayWindow(None, "instance")

    async def call(client, sequence, attempt=0):
        def submit():
            task = Task("Update", lambda _: None, "", 0.0)
            task.finish(Answered(long_answer().result, CONTEXT, {}), None)
            return task

        sent = origin(client, sequence, attempt=attempt, instance="instance", epoch=1)
        await window.call("Update", sent, 1, submit)
        await asyncio.sleep(0)  # the loop goes round: what is done is counted

    async def calls():
        for sequence in range(1, 8):
            await call("one", sequence)
        assert window.remembered_calls == 4
        with pytest.raises(OutcomeUnknownError, match="bytes of answers further"):
            await call("one", 3, attempt=1)
        await call("one", 4, attempt=1)
        for client in ("two", "three", "four"):
            for sequence in range(1, 5):
                await call(client, sequence)
        assert window.remembered_calls <= 11  # the last one's answer came after the check
        with pytest.raises(OutcomeUnknownError, match="may have been forgotten"):
            await call("one", 7, attempt=1)

    asyncio.run(calls())


def test_metadata_is_not_written_again_with_each_commit(tmp_path):
    """150 checkpoints with 64 KB of metadata wrote 965 MB."""
    options = {"durability": "commands", "cache_bytes": 1 << 20, "commit_every_s": 0.0}
    path = tmp_path / "store"
    store = embstore.open(path, files=UnsyncedFiles(path), **options)
    engine: Engine = store.executor
    metadata = {"note": "x" * 50_000}
    sizes = []
    append = engine.log.files.append

    def appended(kind, command, parts):
        sizes.append(sum(map(len, parts)))
        return append(kind, command, parts)

    engine.log.files.append = appended
    for number in range(20):
        made = engine.begin(c.Checkpoint(f"l{number}", metadata), origin=origin("one", number + 1))
        assert made.metadata == metadata
    assert max(sizes) < 2 * 50_000
    (answers,) = engine.log.memory.answers.clients.values()
    assert answers.calls[20].result == replace(made, metadata={})
    store.close()
