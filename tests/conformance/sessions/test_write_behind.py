"""`store.session(..., waits="none")`: the trainer applies updates itself and runs ahead; the store
ends with the bits of plain calls, and a step begins while the one before is still on its way."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from embstore import commands as c
from embstore.config import Adagrad, Adam, Ftrl, Limits, RowWiseAdagrad, Sgd
from embstore.errors import InvalidArgumentError, ReplicaMismatchError, TableHeldError
from embstore.handles.store import Store
from tests.conformance.cases import assert_same, config, generator, normal, refused
from tests.conformance.meeting import Meeting
from tests.conformance.traces import values, zipf_keys
from tests.decayed import name_of

ROWS, DRAWS = 900, 120
OPTIMIZERS = [
    *(Sgd(0.1), Adagrad(0.1), RowWiseAdagrad(0.05), Adam(0.01), Ftrl(0.05, l1=0.01)),
    RowWiseAdagrad(0.05, weight_decay=0.1),
    Adam(0.01, weight_decay=0.1, decoupled_weight_decay=True),
]
TABLES: dict[str, dict[str, Any]] = {
    "a": config(dim=12, rows=ROWS, optimizer=RowWiseAdagrad(0.05)),
    "b": config(dim=5, rows=ROWS, optimizer=Adam(0.01)),
}
WAIT_S = 60


def batches(rng: Any, count: int, tables: Any = TABLES, draws: int = DRAWS) -> list[dict[str, Any]]:
    """Return batches of Zipf-like keys, repeated within a step and over steps."""
    return [
        {name: zipf_keys(rng, given["rows"], draws) for name, given in tables.items()}
        for _ in range(count)
    ]


def itself(batch: Any) -> Any:
    return batch


def gradients_of(rng: Any, batch: Any) -> dict[str, Any]:
    return {name: values(rng, len(batch[name]), TABLES[name]["dim"]) for name in batch}


def share(batch: Any, gradients: Any) -> dict[str, Any]:
    """Return a batch as the reference takes it."""
    return {name: (batch[name], gradients[name]) for name in gradients}


def trained(twin: Any, step: Any, rng: Any) -> None:
    """Update a step's rows, and those of the reference."""
    gradients = gradients_of(rng, step.batch)
    step.update(gradients)
    twin.reference.update(share(step.batch, gradients))


@pytest.fixture
def twin(open_twin):
    return open_twin(**TABLES)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=name_of)
def test_every_optimizer_gives_the_bits_of_plain_calls(open_twin, optimizer):
    given = config(dim=7, rows=ROWS, optimizer=optimizer)
    twin = open_twin(a=given)
    rng = generator(841)
    with twin.store.session(["a"], waits="none") as run:
        for step in run.steps(batches(rng, 25, {"a": given}), itself):
            keys = step.batch["a"]
            rows = step.lookup()["a"]
            assert_same(rows, twin.reference.lookup({"a": keys})["a"])
            gradients = 0.1 * rows + normal(rng, len(keys), 7)
            done = step.update({"a": gradients})
            assert done.t == twin.reference.update({"a": (keys, gradients)})
        assert run.synchronize() == 25
    twin.check()


@pytest.mark.parametrize(("lookahead", "depth"), [(1, 1), (2, 2), (5, 1), (16, 4), (16, 16)])
@pytest.mark.parametrize("planner", ["per_step", "group:3"])
def test_any_depth_gives_the_bits_of_plain_calls(twin, lookahead, depth, planner):
    rng = generator(842)
    how = {"lookahead": lookahead, "depth": depth, "planner": planner}
    with twin.store.session(["a", "b"], waits="none", **how) as run:
        for step in run.steps(batches(rng, 30), itself):
            wanted = twin.reference.lookup(step.batch)
            for name, rows in step.lookup().items():
                assert_same(rows, wanted[name])
            trained(twin, step, rng)
        assert run.last_step == 30
    twin.check()


def test_steps_in_parts_give_the_bits_of_plain_calls(backend, open_twin):
    twin = open_twin(**TABLES, cache_bytes=36_000)
    rng, in_parts = generator(843), 0
    with twin.store.session(["a", "b"], waits="none") as run:
        for step in run.steps(batches(rng, 15, draws=900 * backend.shards), itself):
            wanted = twin.reference.lookup(step.batch)
            assert_same(step.lookup()["b"], wanted["b"])
            trained(twin, step, rng)
            (facts,) = twin.store.sessions.stats()
            in_parts = max(in_parts, facts["steps_in_parts"])
    assert in_parts
    twin.check()


def test_loops_of_one_run_and_another_run_go_on(twin):
    rng = generator(846)
    for waits in ("none", "late", "none"):
        with twin.store.session(["a", "b"], waits=waits, name="run", resume=False) as run:
            for _ in range(2):
                for step in run.steps(batches(rng, 7), itself):
                    trained(twin, step, rng)
    assert run.last_step == 42
    twin.check()


def test_leaving_a_loop_early_keeps_what_was_finished(twin):
    rng = generator(847)
    with twin.store.session(["a", "b"], waits="none", name="run") as run:
        for step in run.steps(batches(rng, 30), itself):
            if step.number == 11:
                break
            trained(twin, step, rng)
    with twin.store.session(["a", "b"], waits="none", name="run") as run:
        assert run.last_step == 10
    twin.check()


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_give_the_bits_of_plain_calls(twin, ranks):
    """Rows of one rank are changed by gradients of the others, also before it has them."""
    rng, count = generator(848), 30
    loaders = [batches(rng, count) for _ in range(ranks)]
    gradients = [[gradients_of(rng, batch) for batch in loader] for loader in loaders]
    meeting = Meeting(ranks)

    def train(rank: int) -> None:
        with twin.store.session(
            ["a", "b"],
            waits="none",
            name="ranks",
            rank=rank,
            world_size=ranks,
            all_gather=meeting.of(rank),
        ) as run:
            for place, step in enumerate(run.steps(loaders[rank], itself)):
                rows = step.lookup()
                if place % 7 == 5:
                    step.skip()
                    continue
                given = gradients[rank][place]
                # What is sent depends on what was looked up: a wrong row is not missed.
                step.update({n: given[n] + 0.1 * rows[n] for n in rows}, gradient_scale=0.5)

    with ThreadPoolExecutor(ranks) as pool:
        for future in [pool.submit(train, rank) for rank in range(ranks)]:
            future.result(WAIT_S)
    for place in range(count):
        if place % 7 == 5:
            twin.reference.command_number += 1
            continue
        shares = []
        for rank in range(ranks):
            batch, given = loaders[rank][place], gradients[rank][place]
            rows = twin.reference.lookup(batch)
            shares.append({n: (batch[n], given[n] + np.float32(0.1) * rows[n]) for n in batch})
        twin.reference.update_ranks(shares, gradient_scale=0.5)
    twin.check()


class Withheld:
    """An executor whose answers to finished steps come when they are let through."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.lock = threading.Condition()
        self.begun = 0
        """The last step that the loop has looked up."""
        self.held = 0
        """How many answers were there before the next step had begun, and waited for it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def execute(self, command: Any, **how: Any) -> Any:
        done = self._executor.execute(command, **how)
        if isinstance(command, c.UpdateStep):
            with self.lock:
                self.held += self.begun <= command.step
                assert self.lock.wait_for(lambda: self.begun > command.step, WAIT_S)
        return done

    def note(self, step: int) -> None:
        with self.lock:
            self.begun = step
            self.lock.notify_all()


@pytest.mark.parametrize("depth", [1, 4])
def test_no_answer_is_waited_for_between_two_steps(twin, depth):
    """The answer to step t is withheld until step t + 1 has its rows."""
    rng, withheld = generator(849), Withheld(twin.store.executor)
    store = Store(withheld)
    with store.session(["a", "b"], waits="none", depth=depth) as run:
        for step in run.steps(batches(rng, 12), itself):
            step.lookup()
            withheld.note(step.number)
            trained(twin, step, rng)
            if step.number == 12:
                withheld.note(13)
    assert withheld.begun == 13
    twin.check()


def test_depth_bounds_how_far_the_store_is_behind(twin):
    """Answers are withheld: the loop goes on for `depth` steps, and waits in the next update."""
    rng, depth = generator(850), 3
    allowed = threading.Event()
    finished: list[int] = []

    class Held(Withheld):
        def execute(self, command: Any, **how: Any) -> Any:
            done = self._executor.execute(command, **how)
            if isinstance(command, c.UpdateStep):
                assert allowed.wait(WAIT_S)
            return done

    held = Held(twin.store.executor)

    def train() -> None:
        with Store(held).session(["a"], waits="none", depth=depth) as run:
            for step in run.steps(batches(rng, 9, {"a": TABLES["a"]}), itself):
                rows = step.lookup()
                with held.lock:
                    held.begun = step.number
                    held.lock.notify_all()
                step.update(rows)
                with held.lock:
                    finished.append(step.number)
                    held.lock.notify_all()

    with ThreadPoolExecutor(1) as pool:
        trained = pool.submit(train)
        with held.lock:
            assert held.lock.wait_for(lambda: held.begun == depth + 1, WAIT_S)
            assert finished == [1, 2, 3]
        allowed.set()
        trained.result(WAIT_S)
    assert finished == [*range(1, 10)]
    for batch in batches(generator(850), 9, {"a": TABLES["a"]}):
        rows = twin.reference.lookup(batch)
        twin.reference.update({"a": (batch["a"], rows["a"])})
    twin.check()


@pytest.mark.needs("one_store")
@pytest.mark.parametrize("lookahead", [1, 16])
def test_a_wrong_row_at_the_trainer_ends_the_session_before_it_is_learned_from(twin, lookahead):
    rng, how = generator(851), {"waits": "none", "name": "run"}
    with pytest.raises(ReplicaMismatchError, match="step 6: expected rank 0 to have the rows"):
        with twin.store.session(["a", "b"], lookahead=lookahead, **how) as run:
            for step in run.steps(batches(rng, 40), itself):
                if step.number == 6:
                    step.lookup()
                    flight = run._exchange._rows._tables["a"].rows
                    slot = step._entry.flight.placed["a"].slots[0]
                    flight._weights[slot, 3] += np.float32(1e-3)
                gradients = gradients_of(rng, step.batch)
                step.update(gradients)
                if step.number < 6:
                    twin.reference.update(share(step.batch, gradients))
    with twin.store.session(["a", "b"], **how) as run:
        assert run.last_step == 5
    twin.check()


def test_arguments_are_checked(twin):
    session = twin.store.session
    for wrong in (
        {"waits": "never"},
        {"waits": "none", "shared": True},
        {"waits": "none", "depth": 17},
        {"waits": "none", "depth": 0},
        {"waits": "none", "name": "x", "world_size": 2},
        {"depth": 3},
        {"all_gather": list},
    ):
        with pytest.raises(InvalidArgumentError), session(["a"], **wrong):
            pass


def test_a_rate_is_given_to_updates_not_to_the_table(twin):
    rng = generator(852)
    with twin.store.session(["a"], waits="none") as run:
        for step in run.steps(batches(rng, 3, {"a": TABLES["a"]}), itself):
            with pytest.raises((InvalidArgumentError, TableHeldError), match="learning_rate"):
                twin.store.table("a").learning_rate = 0.5
            step.release()
            twin.reference.command_number += 1
    twin.check()


def test_rows_of_a_step_come_in_as_many_calls_as_the_limit_asks_for(backend):
    """A step whose weights fit a call, and whose state does not."""
    draws = 500
    store, plain = with_small_calls(backend, "run"), with_small_calls(backend, "plain")
    rng = generator(853)
    with store.session(["a"], waits="none", name="run") as run:
        for step in run.steps([{"a": rng.permutation(5_000)[:draws]} for _ in range(8)], itself):
            keys, rows = step.batch["a"], step.lookup()["a"]
            assert_same(rows, plain.table("a").lookup(keys))
            step.update({"a": rows})
            plain.table("a").update(keys, rows)
    assert store.table("a").digest() == plain.table("a").digest()


CALL_BYTES = 1 << 16


def with_small_calls(backend, name):
    store = backend.open_store(name, limits=Limits(call_bytes_max=CALL_BYTES))
    store.create_table("a", **config(dim=16, rows=5_000, optimizer=Adam(0.01)))
    return store


@pytest.mark.needs("one_store")  # of several shards, each has a limit of its own
def test_rows_of_a_step_above_the_limit_are_refused(backend):
    store, draws = with_small_calls(backend, "raw"), 500
    store.sessions.open("raw", ["a"], waits="none")
    member = store.sessions.join("raw", 0).member
    store.sessions.announce(member, {1: {"a": np.arange(draws)}})
    row_bytes = 4 * 3 * 16
    with refused(store, InvalidArgumentError, "limits.call_bytes_max", str(draws * row_bytes)):
        store.sessions.read_step(member, 1, {"a": np.arange(draws)})
    fits = np.arange(CALL_BYTES // row_bytes)
    (part,) = store.sessions.read_step(member, 1, {"a": fits}).tables
    assert_same(part.rows, store.table("a").lookup(fits))
