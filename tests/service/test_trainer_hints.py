"""What an error tells a trainer to do about its sessions, calls and connection, done as its text
says: then it goes on."""

import re
import shlex
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from embstore import Constant, Sgd, Store, connect
from embstore.errors import EmbstoreError, SessionExpiredError, TableHeldError
from tests.service.test_hints import refusal
from tests.serving import Server

TABLE: dict[str, Any] = {"dim": 4, "rows": 9, "optimizer": Sgd(1.0), "initializer": Constant(0.0)}
KEYS, ONES = np.array([1, 2]), np.ones((2, 4), np.float32)


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    with connect(server.address) as opened:
        opened.create_table("t", **TABLE)
        yield opened


def steps(run: Any, count: int = 1) -> Any:
    return run.steps([KEYS] * count, keys=lambda keys: {"t": keys})


def train(run: Any, count: int = 1) -> None:
    for step in steps(run, count):
        step.update({"t": ONES})


def test_a_session_of_a_trainer_that_has_gone_is_ended(server, store, shell):
    with suppress(SessionExpiredError), store.session(["t"], name="it's gone"):
        with pytest.raises(TableHeldError) as refused:
            store.session(["t"], name="next", wait_s=0).__enter__()
        (words,) = re.findall(r"embstore (sessions close .*)", str(refused.value))
        typed = *shlex.split(words), "--address", server.address
        confirmed = re.findall(r"--[a-z]+", shell(*typed).err)  # this is asked for
        assert shell(*typed, *confirmed).status == 0
        with store.session(["t"], name="next", wait_s=0) as run:
            train(run)
    assert store.table("t").t == 1


def test_a_table_that_a_session_holds_is_written_beside_a_shared_one(store):
    table = store.table("t")
    with store.session(["t"]), connect(store.executor.connected_by["address"]) as other:
        text = refusal(lambda: other.table("t").update(KEYS, ONES), TableHeldError)
    ((name, value),) = re.findall(r"open that session with (\w+)=(True)", text)
    with store.session(["t"], **{name: bool(value)}):
        table.update(KEYS, ONES)
    assert table.t == 1


def test_a_table_in_use_is_free_when_its_session_is_closed(store):
    run = store.session(["t"])
    with run:
        text = refusal(lambda: store.drop_table("t"), TableHeldError)
    assert "close it, then drop" in text
    store.drop_table("t")


def test_a_session_that_is_open_otherwise_gets_another_name(store):
    store.sessions.open("job", ["t"])
    text = refusal(lambda: store.sessions.open("job", ["t"], lookahead_steps_max=3), TableHeldError)
    assert text.endswith("close it, or give another name")
    store.sessions.end("job")
    store.sessions.open("job", ["t"], lookahead_steps_max=3)


def test_gradients_of_a_step_that_are_not_finite_are_skipped(store):
    with store.session(["t"]) as run:
        for step in steps(run):
            rows = np.full((2, 4), np.nan, np.float32)
            text = refusal(lambda step=step, rows=rows: step.update({"t": rows}))
            ((name, value),) = re.findall(r'give (\w+)="(\w+)"', text)
            assert step.update({"t": rows}, **{name: value}).skipped


def test_a_loop_that_was_left_goes_on_in_another_run(store):
    with store.session(["t"], name="job") as run:
        for step in steps(run, 3):
            step.update({"t": ONES})
            break
        assert refusal(lambda: train(run)).endswith("open another run")
    with store.session(["t"], name="job", resume=False) as run:
        train(run, 2)
    assert store.table("t").t == 3


@pytest.mark.parametrize("left", [3, 1])
def test_a_session_that_goes_on_is_told_where_its_batches_begin(store, left):
    with store.session(["t"], name="job") as run:
        train(run, 2)
    with store.session(["t"], name="job") as run, pytest.warns(UserWarning) as warned:
        next(steps(run)).release()
    words = re.findall(r"resume=(True|False)", str(warned[0].message))
    assert words == ["True", "False"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with store.session(["t"], name="job", resume=left == 3) as run:
            train(run, left)
    assert store.table("t").t == 2 + (left == 1)


def test_a_call_that_is_too_large_is_split(store):
    wide = store.create_table("wide", **TABLE | {"dim": 1024, "rows": 1 << 20})
    keys = np.arange(1 << 18)
    text = refusal(lambda: wide.lookup(keys))
    ((most,),) = [re.findall(r"at most (\d+) bytes", text)]
    assert text.endswith("split the call")
    part = int(most) // (8 + 4 * 1024) // 64
    assert len(wide.lookup(keys[:part], admit=False)) == part


def test_a_token_is_not_sent_in_clear_text_unless_the_network_is_trusted():
    text = refusal(lambda: connect("embstore.invalid:1", token="secret"))
    assert "give tls_ca" in text
    ((name, value),) = re.findall(r"or (insecure)=(True)", text)
    with pytest.raises(EmbstoreError, match="resolve"):
        connect("embstore.invalid:1", token="secret", **{name: bool(value)}, timeout_s=1)


def test_rows_are_set_when_no_announced_step_is_open(store):
    sessions = store.sessions
    sessions.open("job", ["t"])
    member = sessions.join("job", 0).member
    sessions.announce(member, {1: {"t": KEYS}})
    rows = KEYS, ONES, np.empty((2, 0), np.float32), 0
    put = partial(sessions.put_rows, member, {"t": rows})
    text = refusal(put)
    (verb,) = re.findall(r"(release) or skip them, then set rows", text)
    getattr(sessions, f"{verb}_step")(member, 1)
    put()
    assert store.table("t").lookup(KEYS).all()
