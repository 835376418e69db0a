"""How runs end that wait for nothing: after failures, interrupts and silence. Nothing is waited for
that cannot come, no loop begins on what was lost, and what is finished is kept or told of."""

import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import embstore
import embstore_training.write_behind
from embstore import commands as c
from embstore.config import Adam, Uniform
from embstore.errors import DeadlineError, InvalidArgumentError
from embstore.handles.store import Store
from embstore_client.frameworks.steps import Announced, Steps
from tests.conformance.cases import is_waiting
from tests.service.frequency_samples import PATIENCE_S
from tests.serving import Server, patient

ROWS, DIM, KEYS = 100, 4, 30
CONFIG: dict[str, Any] = {"dim": DIM, "rows": ROWS, "optimizer": Adam(0.01)}
FOLDER = str(Path(embstore_training.write_behind.__file__).parent)


class Doubled:
    """An executor, some of whose commands are done otherwise."""

    def __init__(self, store: Store, otherwise: Callable[[Any, Callable[[], Any]], Any]) -> None:
        self._executor = store.executor
        self._otherwise = otherwise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def execute(self, command: Any, **how: Any) -> Any:
        return self._otherwise(command, lambda: self._executor.execute(command, **how))


def opened(path: Path) -> Store:
    """Open a store with a table "a"."""
    store = embstore.open(path, cache_bytes=1 << 20, threads=1)
    for name in ("a", "b"):
        store.create_table(name, initializer=Uniform(-0.1, 0.1), **CONFIG)
    return store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path / "store") as store:
        yield store


def keys_of(number: int) -> dict[str, Any]:
    return {"a": np.random.default_rng(number).integers(0, ROWS, KEYS)}


def gradients_of(number: int, rows: Any) -> dict[str, Any]:
    noise = np.random.default_rng([number, 1]).standard_normal(DIM, np.float32)
    return {"a": np.float32(0.1) * rows["a"] + noise}


def plain_digest(path: Path, last: int) -> str:
    """Return the digest after plain calls."""
    with opened(path) as store:
        for number in range(1, last + 1):
            keys = keys_of(number)
            store.update({"a": (keys["a"], gradients_of(number, store.lookup(keys))["a"])})
        return store.table("a").digest()


def threads() -> list[threading.Thread]:
    """Return the threads of runs that there are."""
    names = ("embstore-sender", "embstore-reader", "embstore-lease")
    return [thread for thread in threading.enumerate() if thread.name.startswith(names)]


def test_no_loop_begins_after_a_step_that_could_not_be_sent(store):
    """All steps of the loop were sent, and the last has failed when the loop waits for them."""

    def otherwise(command: Any, execute: Callable[[], Any]) -> Any:
        if isinstance(command, c.UpdateStep) and command.step == 3:
            raise DeadlineError("no answer in time")
        return execute()

    doubled = Store(Doubled(store, otherwise))
    with pytest.raises(DeadlineError) as raised, doubled.session(["a"], waits="none") as run:
        with pytest.raises(DeadlineError):
            for step in run.steps(range(1, 4), keys_of):
                if step.number == 3:
                    run.synchronize()
                step.update(gradients_of(step.number, step.lookup()))
        with pytest.raises(InvalidArgumentError, match="open it again: it goes on after step 2"):
            next(run.steps(range(3, 40), keys_of))
    (note,) = raised.value.__notes__
    assert "steps 3 to 3, which the loop has finished, were not acknowledged" in note


def test_nobody_waits_for_steps_of_a_failed_run_at_a_store_that_is_silent(store):
    is_over, is_silent = threading.Event(), threading.Event()

    def otherwise(command: Any, execute: Callable[[], Any]) -> Any:
        if is_silent.is_set() and isinstance(command, c.UpdateStep):
            assert is_over.wait(PATIENCE_S)
        if is_silent.is_set() and isinstance(command, c.RenewLease):
            raise DeadlineError("no answer in time")
        return execute()

    with pytest.raises(ZeroDivisionError) as raised:
        with Store(Doubled(store, otherwise)).session(["a"], waits="none", name="run") as run:
            for step in run.steps(range(1, 40), keys_of):
                if step.number == 4:
                    run.synchronize()
                    is_silent.set()
                step.update(gradients_of(step.number, step.lookup()))
                if step.number == 5:
                    raise ZeroDivisionError
    is_over.set()
    (note,) = raised.value.__notes__
    assert "steps 4 to 5, which the loop has finished, were not acknowledged" in note
    assert "train them again" in note


def test_an_interrupt_anywhere_in_an_update_ends_the_run(store, tmp_path):
    """KeyboardInterrupt at each line of an update in turn: the run ends, so do its threads, and
    what is left is some steps, whole."""
    lines = interrupted(store, at=1 << 30)
    assert lines > 20
    for at in range(lines):
        with pytest.raises(KeyboardInterrupt):
            interrupted(store, at=at)
    with store.session(["a"], waits="none", name="run") as run:
        last = run.last_step
    assert store.table("a").digest() == plain_digest(tmp_path / "plain", last)
    for thread in threads():
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), thread.name


def interrupted(store: Store, at: int) -> int:
    """Train two steps, and interrupt the second update at a line; return how many it has had.

    A line of `with` is left out: it comes again before a lock is given back, where no signal does.
    """
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not source.lstrip().startswith("with "):
            lines += 1
            if lines > at:
                raise KeyboardInterrupt
        return trace

    with store.session(["a"], waits="none", name="run", depth=2, resume=False) as run:
        first = run.last_step + 1
        for step in run.steps(range(first, first + 2), keys_of):
            gradients = gradients_of(step.number, step.lookup())
            if step.number > first:
                before = sys.gettrace()
                sys.settrace(trace)
            try:
                step.update(gradients)
            finally:
                if step.number > first:
                    sys.settrace(before)
    return lines


def test_an_update_that_one_table_refuses_changes_no_other(store):
    most = 2**64 - 1
    one = np.zeros((1, DIM), np.float32)
    store.table("b").put_rows([0], one, np.zeros((1, 2 * DIM), np.float32), most)
    with store.session(["a", "b"], waits="none") as run:
        for step in run.steps([{"a": [5], "b": [0]}] * 3, lambda batch: batch):
            rows = step.lookup()
            with pytest.raises(InvalidArgumentError, match="cannot grow"):
                step.update({name: rows[name] + 1 for name in rows})
            assert step.update({"a": rows["a"] + 1}).t == {"a": step.number, "b": most}
    assert store.table("a").t == 3


def test_a_checkpoint_of_a_module_has_every_step_that_its_loop_has_finished(store):
    """The store is held back until the trainer waits for it, or has what it wanted."""
    is_held = threading.Event()
    trainer = threading.current_thread()

    def otherwise(command: Any, execute: Callable[[], Any]) -> Any:
        if isinstance(command, c.UpdateStep):
            while not is_waiting(trainer) and not is_held.wait(1e-3):
                pass
        return execute()

    doubled, steps = Store(Doubled(store, otherwise)), Steps("zero_grad")
    batches = (Announced(number, keys_of(number)) for number in range(1, 8))
    for at_hand, (number, keys, *_) in steps.ahead(doubled, ["a"], batches, waits="none"):
        rows = at_hand.rows(keys)["a"].of(slice(None))
        at_hand.update({"a": (keys["a"], gradients_of(number, {"a": rows})["a"])})
        if number == 5:
            steps.synchronize()
            assert (steps.last_step, store.table("a").t) == (5, 5)
    is_held.set()
    assert (steps.last_step, store.table("a").t) == (7, 7)


def test_steps_before_their_turn_keep_none_out_whose_turn_it_is(tmp_path):
    """They hold all the bytes of calls that a server takes, and wait for that one."""
    path, count, steps = tmp_path / "served", 4_000, range(1, 6)
    size = 4 * DIM * count
    settings: dict[str, Any] = {"inflight_bytes_max": 2 * size, "unary_bytes_max": 1 << 10}
    with Server(lambda: opened(path), path, socket="off", **settings) as server:
        server.store.table("a").grow(count)
        with patient(server.address) as store, ThreadPoolExecutor(len(steps)) as pool:
            sessions = store.sessions
            sessions.open("run", ["a"], waits="none")
            member = sessions.join("run", 0).member
            sessions.announce(member, {n: {"a": np.arange(count)} for n in steps})
            gradients = np.ones((count, DIM), np.float32)

            def send(number: int) -> Any:
                return sessions.update_step(member, number, {"a": gradients}, timeout_s=PATIENCE_S)

            sent = [pool.submit(send, number) for number in reversed(steps)]
            assert sorted(future.result(PATIENCE_S).t["a"] for future in sent) == [*steps]
            sessions.close(member)
