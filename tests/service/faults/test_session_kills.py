"""Look-ahead sessions over kill -9: of a trainer, of a client, of a server.

What is killed comes back as of its last commit, the place of a session with its rows; what a killed
client had announced is gone when its lease has run out, and the next one goes on where it stood.
"""

import os
import signal
from typing import Any

import numpy as np
import pytest

from embstore import commands as c
from embstore.config import Adam, Uniform
from embstore.errors import LeaseExpiredError, SessionExpiredError, TableHeldError
from embstore_client import connect
from embstore_proto.shared_memory import Kind
from embstore_proto.verbs import VERBS
from tests.faults.forks import Child
from tests.reference import ReferenceStore
from tests.service.device.samples import NOTHING_LENT, SEGMENT_BYTES, GpuServer, Lent
from tests.service.faults.losing import needs_compiler
from tests.service.faults.served import PATIENCE_S, Served, on_loop_call, until
from tests.service.faults.sharing import Sharer

DIM, ROWS, KEYS = 8, 2000, 30
CONFIG: dict[str, Any] = {
    "dim": DIM,
    "rows": ROWS,
    "optimizer": Adam(0.01),
    "initializer": Uniform(-0.1, 0.1),
}
WINDOW = 64


def keys_of(step: int) -> dict[str, Any]:
    """Return what a step announces."""
    return {"a": np.random.default_rng(step).permutation(ROWS)[:KEYS]}


def gradients_of(step: int) -> dict[str, Any]:
    """Return what a step sends."""
    return {"a": np.random.default_rng([step, 1]).standard_normal((KEYS, DIM), np.float32)}


def digest_after(steps: int) -> str:
    """Return the digest of the reference after so many steps."""
    reference = ReferenceStore()
    table = reference.create_table("a", **CONFIG)
    for step in range(1, steps + 1):
        table.update(keys_of(step)["a"], gradients_of(step)["a"])
    return table.digest()


def run_out(served: Served) -> None:
    """Have all leases run out, as if their time had passed."""
    registry = served.store.executor.sessions._registry
    with registry.planner.changed:
        for session in registry.sessions.values():
            for rank in session.ranks.values():
                rank.deadline = 0.0
        registry.planner.notify()


def opened(store: Any) -> tuple[int, str]:
    """Open the session and join it, as soon as nobody else is in it; return place and member."""

    def joined() -> tuple[int, str] | None:
        try:
            facts = store.sessions.open("run", ["a"], lookahead_steps_max=WINDOW, lease_ms=60_000)
            return facts.last_step, store.sessions.join("run", 0).member
        except (TableHeldError, SessionExpiredError):
            return None

    found: tuple[int, str] = until(joined)
    return found


def announce(store: Any, member: str, first: int, last: int) -> None:
    """Announce steps from `first` to `last`."""
    store.sessions.announce(member, {step: keys_of(step) for step in range(first, last + 1)})


def train(store: Any, member: str, first: int, last: int) -> None:
    """Do announced steps."""
    for step in range(first, last + 1):
        store.sessions.lookup_step(member, step, timeout_s=PATIENCE_S)
        store.sessions.update_step(member, step, gradients_of(step), timeout_s=PATIENCE_S)


def train_and_be_killed(reports: Any, address: str) -> None:
    """The child: a trainer whose lease lasts for longer than any test."""
    with connect(address, timeout_s=PATIENCE_S) as store:
        run = store.session(["a"], name="run", lookahead=WINDOW, lease_ms=600_000)
        with run as training:
            for step in training.steps(range(1, 10), keys=keys_of):
                step.lookup()
                reports.send(step.batch)
                signal.pause()


def renew_and_be_killed(reports: Any, address: str, member: str, times: int) -> None:
    """The child: one of several processes that use a member."""
    with connect(address, timeout_s=PATIENCE_S) as store:
        for _ in range(times):
            store.sessions.renew(member)
        reports.send(times)
        signal.pause()


def joined(store: Any) -> str:
    """Open a session whose lease lasts for longer than any test; return its member."""
    store.sessions.open("run", ["a"], lookahead_steps_max=WINDOW, lease_ms=600_000)
    return str(store.sessions.join("run", 0).member)


def kill_and_await(served: Served, child: Child) -> None:
    """Kill a process, and wait until the server has seen its end."""
    assert child.kill() == -signal.SIGKILL
    until(lambda: not on_loop_call(served.sharing.processes.is_watched, child.pid))


def test_killed_local_trainer_frees_its_tables_before_its_lease_runs_out(forks, served):
    with served.connect() as store:
        store.create_table("a", **CONFIG)
        child = forks.start(train_and_be_killed, served.address)
        assert child.reports.poll(PATIENCE_S)
        kill_and_await(served, child)
        assert not served.store.executor.sessions.names()
        with store.session(["a"], name="run", lookahead=WINDOW, wait_s=PATIENCE_S) as run:
            assert run.last_step == 0
    served.assert_free()


def test_member_is_left_to_its_lease_while_a_process_that_used_it_lives(forks, served):
    with served.connect() as store:
        store.create_table("a", **CONFIG)
        member = joined(store)
        once, first, second = (
            forks.start(renew_and_be_killed, served.address, member, times) for times in (1, 2, 2)
        )
        for child in (once, first, second):
            assert child.reports.poll(PATIENCE_S)
        for child in (first, once):
            kill_and_await(served, child)
            assert served.store.executor.sessions.names() == ["run"]
        kill_and_await(served, second)
        with pytest.raises(LeaseExpiredError, match=f"its process, {second.pid}, has ended"):
            store.sessions.renew(member)


@pytest.mark.parametrize(("times", "is_used_by_grpc"), [(1, False), (2, True)])
def test_process_of_a_single_call_or_of_the_network_beside_it_leaves_a_member_to_its_lease(
    forks, served, times, is_used_by_grpc
):
    with served.connect() as store:
        store.create_table("a", **CONFIG)
        member = joined(store)
        if is_used_by_grpc:
            store.sessions.renew(member)
        child = forks.start(renew_and_be_killed, served.address, member, times)
        assert child.reports.poll(PATIENCE_S)
        kill_and_await(served, child)
        assert store.sessions.renew(member).name == "run"


def test_process_that_connects_again_keeps_its_session(served):
    with connect(f"unix:{served.socket}", timeout_s=PATIENCE_S) as store:
        store.create_table("a", **CONFIG)
        member = joined(store)
        for _ in range(3):
            store.sessions.renew(member)
    until(lambda: not served.service.traffic["shared_memory"].connections)
    with connect(f"unix:{served.socket}", timeout_s=PATIENCE_S) as store:
        assert store.sessions.renew(member).name == "run"


def take_rows_on_the_device_and_be_killed(reports: Any, socket: str, step: int) -> None:
    """The child: a trainer that is lent rows of its step in the GPU's memory, or waits for them."""
    with connect(f"unix:{socket}", timeout_s=PATIENCE_S) as store, Sharer(socket) as sharer:
        member = joined(store)
        announce(store, member, 1, 2)
        sharer.ask_for_device(1)
        header = VERBS["LookupStep"].outgoing(c.LookupStep(member, step, early=False))
        sharer.begin_call("LookupStep", header.serialised(None), 0)
        kind = sharer.answer().kind if step == 1 else None
        reports.send(kind)
        signal.pause()


@needs_compiler
@pytest.mark.parametrize("step", [1, 2])
def test_killed_trainer_leaves_no_rows_lent_in_the_memory_of_a_gpu(forks, quick_path, step):
    """And none under way: the second step waits for the first, which nobody finishes."""
    path, socket = quick_path / "store", str(quick_path / "socket")
    with GpuServer(path, socket=socket) as served:
        with served.connect() as store:
            store.create_table("a", **CONFIG)
            child = forks.start(take_rows_on_the_device_and_be_killed, socket, step)
            assert child.reports.poll(PATIENCE_S)
            assert child.reports.recv() == (Kind.RESULT if step == 1 else None)
            until(lambda: Lent.of(served)[:2] == (SEGMENT_BYTES, SEGMENT_BYTES))
            kill_and_await(served, child)
            until(lambda: Lent.of(served) == NOTHING_LENT)
            assert not served.store.executor.sessions.names()
            until(lambda: not pinned_rows(served))
            with store.session(["a"], name="run", lookahead=WINDOW) as run:
                assert run.last_step == 0
        served.assert_free()


def pinned_rows(served: Served) -> int:
    """Return how many rows the sessions of a served store hold."""
    return int(served.store.stats()["sessions"]["planning"]["pinned_rows"])


def test_hundred_killed_clients_leave_nothing(forks, served):
    """Each is killed with its window announced; the server's files and threads stay as many."""
    with served.connect() as store:
        store.create_table("a", **CONFIG)
        before = 0
        for n in range(100):
            child = forks.start(announce_and_be_killed, served.address)
            assert child.reports.poll(PATIENCE_S)
            assert child.reports.recv() == n + 1
            assert child.kill() == -signal.SIGKILL
            run_out(served)
            if n == 10:
                before = len(os.listdir("/proc/self/task"))
        until(lambda: not pinned_rows(served))
        assert len(os.listdir("/proc/self/task")) <= before + 1
        place, member = opened(store)
        assert place == 100
        assert store.table("a").digest() == digest_after(100)
        store.sessions.close(member)
    served.assert_free()


def announce_and_be_killed(reports: Any, address: str) -> None:
    """The child: does one step of a whole window, and is killed."""
    with connect(address, timeout_s=PATIENCE_S) as store:
        place, member = opened(store)
        announce(store, member, place + 1, place + WINDOW)
        train(store, member, place + 1, place + 1)
        reports.send(place + 1)
        signal.pause()
