"""A trainer that was silent for longer than its lease goes on by itself, if nothing is lost, and a
server that did not run takes nobody for silent."""

import os
import re
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.errors import EmbstoreError, RankFailedError, SessionExpiredError, TableHeldError
from embstore.handles.store import Store
from embstore.lookahead import clock
from tests.clusters import Cluster
from tests.conformance.sessions.training import engine_of, until
from tests.conftest import LEASE_S
from tests.unit.test_growing_under_sessions import (
    STEPS,
    TABLE,
    keys_of,
    train_hot_and_cold,
    undisturbed,
)

AT = STEPS // 2


def expire(store: Store) -> None:
    """Have the lease of the only open session run out; it may be opened again at once."""
    engine = engine_of(store)
    sessions = engine.sessions
    with sessions._planner.changed:
        (session,) = sessions._registry.sessions.values()
        session.ranks[0].deadline = 0.0
        sessions._registry.expire()
        assert session.error is not None
    with engine.tables.background():  # the planner may be in the middle of a plan
        sessions.release_ended()


def opened(path: Path) -> Store:
    store = embstore.open(path, device="cpu")
    store.create_table("a", **TABLE)
    return store


def train(store: Store, meanwhile: Callable[[], object], **options: Any) -> None:
    """Train; something happens between the lookup and the update of a step."""
    with store.session(["a"], name="run", **options) as run:
        for step in run.steps(range(1, STEPS + 1), keys=keys_of):
            rows = step.lookup()["a"]
            if step.number == AT:
                meanwhile()
            step.update({"a": rows + np.float32(step.number)})


@pytest.mark.parametrize("waits", ["late", "none"])
def test_a_loop_goes_on_when_its_lease_ran_out(tmp_path, waits):
    with opened(tmp_path) as store:
        train(store, partial(expire, store), waits=waits)
        assert (store.table("a").digest(), store.table("a").t) == undisturbed(waits)


def test_a_loop_over_shards_goes_on_when_one_has_not_heard_of_it(tmp_path):
    cluster = Cluster(tmp_path, 2)
    store = cluster.store()
    store.create_table("a", **TABLE)
    train(store, partial(expire, Store(cluster.engines[1])))
    assert (store.table("a").digest(), store.table("a").t) == undisturbed("late")
    cluster.close()


def test_a_replica_is_pushed_when_its_lease_ran_out(tmp_path, monkeypatch):
    with opened(tmp_path) as store:
        put, wanted = store.sessions.put_rows, undisturbed("hot_and_cold")
        pushes = iter(range(100))

        def put_rows(member: str, puts: Any) -> Any:
            if next(pushes) == 1:
                expire(store)
            return put(member, puts)

        monkeypatch.setattr(type(store.sessions), "put_rows", lambda _, *args: put_rows(*args))
        train_hot_and_cold([store])
        assert next(pushes) > 2
        assert (store.table("a").digest(), store.table("a").t) == wanted


def ended_by_an_operator(store: Store) -> None:
    store.sessions.end("run")


def written_by_others(store: Store) -> None:
    expire(store)
    store.table("a").update([1], np.ones((1, 4), np.float32))


def gone_on_elsewhere(store: Store) -> None:
    expire(store)
    with store.session(["a"], name="run", resume=False) as run:
        for step in run.steps(range(1), keys=keys_of):
            step.update({"a": step.lookup()["a"]})


def restored(store: Store) -> None:
    store.checkpoint("now")
    expire(store)
    store.restore("now")


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        (ended_by_an_operator, "was ended by EndSession"),
        (written_by_others, "its lease had run out, and other clients have written to its tables"),
        (gone_on_elsewhere, f"another process has trained on from step {AT - 1}"),
        (restored, f"no acknowledged step of this rank is lost.*step {AT - 1} is the last one"),
    ],
)
def test_a_loop_that_has_lost_something_says_so(tmp_path, lost, message):
    with opened(tmp_path) as store, pytest.raises(SessionExpiredError, match=message):
        train(store, partial(lost, store))


@pytest.mark.parametrize("called", ["-c", "-m", "", "train.py", "a/train.py"])
def test_a_session_without_a_name_has_one_that_commands_take(tmp_path, monkeypatch, called):
    monkeypatch.setattr(sys, "argv", [called])
    script = "train.py" if "train" in called else "python"
    with opened(tmp_path) as store, store.session(["a"]) as run:
        assert run.facts.name.startswith(f"{script}@")


def test_who_finds_tables_held_is_told_by_whom_and_until_when(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["a/train.py"])
    with opened(tmp_path) as store, store.session(["a"]) as run:
        name = run.facts.name
        whose = re.escape(f"train.py@{socket.gethostname()}-pid{os.getpid()}-")
        assert re.fullmatch(whose + "[0-9a-f]{8}", name)
        message = (
            rf"in use by session '{re.escape(name)}', whose trainer last called \d+\.\d s ago and "
            rf"which ends in \d+\.\d s without a call.* embstore sessions close {re.escape(name)}$"
        )
        with pytest.raises(TableHeldError, match=message):
            store.session(["a"], wait_s=0).__enter__()


# A server that did not run


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what makes the process appear to have been stopped for so many seconds."""
    seconds = 0.0
    monkeypatch.setattr(clock, "monotonic", lambda: monotonic() + seconds)

    def stop(more: float) -> None:
        nonlocal seconds
        seconds += more

    return stop


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_stopped_server_gives_its_leases_that_time(tmp_path, stopped, world_size):
    with opened(tmp_path) as store:
        sessions = store.sessions
        sessions.open("run", ["a"], world_size=world_size, lease_ms=10_000)
        members = [sessions.join("run", rank).member for rank in range(world_size)]
        planner = engine_of(store).sessions._planner
        for _ in range(3):
            with planner.changed:
                stopped(LEASE_S + 1)
                planner.notify()
            for member in members:
                assert sessions.renew(member).name == "run"
        with planner.changed:
            planner.clock._now += LEASE_S + 1
            planner.notify()
        until(lambda: not engine_of(store).sessions.names())
        error: type[EmbstoreError] = SessionExpiredError if world_size == 1 else RankFailedError
        with pytest.raises(error, match="rank 0 was silent for more than its lease of 10000 ms"):
            sessions.renew(members[0])


def test_the_clock_of_leases_moves_on_by_a_part_of_the_shortest_at_most(stopped):
    leases = clock.Clock()
    for lease_s, most in ((None, 1.0), (600.0, 1.0), (2.0, 0.5), (0.001, 0.05)):
        leases.keeps(lease_s)
        before = leases.now()
        stopped(14)
        assert leases.now() - before == pytest.approx(most)
        assert leases.pause_s == most / 2
