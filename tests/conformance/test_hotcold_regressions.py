"""Defects of hot/cold training that a review has shown.

Each test is named for what holds now and says what went wrong.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from embstore.config import Limits
from embstore.errors import DeadlineError, InvalidArgumentError
from embstore.frequency.hotset import HotSet
from embstore_client.hotcold import replica as replica_module
from embstore_client.hotcold import steps as steps_module
from embstore_client.hotcold import update as update_module
from embstore_client.hotcold.replica import Replica
from embstore_client.hotcold.run import HotColdRun
from tests.conformance.cases import generator, ones
from tests.conformance.hotcold import (
    ROWS,
    TABLES,
    Meeting,
    Trainer,
    chunks_of,
    count_commands,
    replay,
    run_of,
    tables_in,
    train_ranks,
)

Open = Callable[..., Any]
CALL_BYTES = 20_000
CALL_ROWS = 294
"""Rows of a push that a call of so many bytes takes, of 68 bytes each: key, weights and state."""


@pytest.fixture
def twin(open_twin: Open) -> Iterator[Any]:
    made = open_twin()
    made.create_table("adam", **TABLES["adam"])
    yield made
    count_commands(made)


@pytest.fixture
def small_calls(open_twin: Open) -> Iterator[Any]:
    """Return a twin whose calls take few rows, and whose table is all hot."""
    made = open_twin(limits=Limits(call_bytes_max=CALL_BYTES))
    made.create_table("adam", **TABLES["adam"])
    yield made
    count_commands(made)
    made.reopen(limits=Limits())  # What is compared at the end is more than such a call.


def hot_run(store: Any, hot_rows: int = ROWS, **options: Any) -> HotColdRun:
    """Return a run of one table, whose first rows are hot."""
    hot_set = HotSet({"adam": np.arange(hot_rows)})
    return HotColdRun(store, hot_set, {"id": "adam"}, **({"batch_size": 20} | options))


def ids(*values: Any) -> list[dict[str, Any]]:
    """Return these ids as a stream of one chunk, numbered."""
    joined = np.concatenate(values)
    return [{"id": joined, "number": np.arange(len(joined))}]


# Hot rows are never more than one push takes


@pytest.mark.parametrize("first", [1, 140, CALL_ROWS])
@pytest.mark.needs("limits")
def test_hot_rows_are_pushed_before_they_could_exceed_a_call(small_calls: Any, first: int) -> None:
    """They were counted after the step, against half a call: a push of 370 rows was refused for
    ever, and what they had learned was lost."""
    trainer = Trainer(small_calls.reference)
    chunks = ids(np.arange(CALL_ROWS) % first, np.arange(300, 300 + CALL_ROWS))
    with hot_run(small_calls.store, batch_size=CALL_ROWS) as run:
        for step in run.steps(chunks):
            trainer.train(step)
        assert run.stats()["pushed_rows"] == first + CALL_ROWS
    assert trainer.kinds == [True, True]


@pytest.mark.needs("limits")
def test_hot_batch_that_no_push_takes_is_trained_as_a_mixed_one(small_calls: Any) -> None:
    """It was trained on the replica, and could never be pushed."""
    trainer = Trainer(small_calls.reference)
    size = CALL_ROWS + 1
    few = np.arange(size) % 7
    with hot_run(small_calls.store, batch_size=size) as run:
        for step in run.steps(ids(np.arange(size), few, np.arange(size), few)):
            trainer.train(step)
    assert trainer.kinds == [False, True, False, True]


@pytest.mark.parametrize("rows", [40, 100, 147, 148])
@pytest.mark.needs("limits")
def test_rows_of_all_ranks_are_never_more_than_one_push_takes(small_calls: Any, rows: int) -> None:
    """Each rank's batch is small, and both together train twice as many rows."""
    trainers = [Trainer(seed=rank) for rank in range(2)]

    def work(rank: int, run: HotColdRun) -> None:
        keys = np.arange(rank * 300, rank * 300 + 5 * rows) % ROWS
        for step in run.steps(ids(keys)):
            trainers[rank].train(step)

    train_ranks(small_calls.store, work, make=hot_run, batch_size=rows)
    replay(small_calls.reference, trainers)
    assert trainers[0].kinds == trainers[1].kinds == [2 * rows <= CALL_ROWS] * 5


# Going on


def overflowing(step: Any, place: int) -> dict[str, Any]:
    """Return a step's gradients, those of every fourth batch not finite."""
    gradients = {t: 0.5 * rows + np.float32(place) for t, rows in step.lookup().items()}
    if place % 4 == 1:
        for of_table in gradients.values():
            of_table[:1] = np.inf
    return gradients


def train(run: HotColdRun, chunks: Any, skip: int = 0) -> Iterator[tuple[int, Any]]:
    """Train a stream whose gradients overflow now and then; yield how many batches are done."""
    for place, step in enumerate(run.steps(chunks, skip=skip), skip + 1):
        if place % 7 == 3:
            step.skip()
        else:
            step.update(overflowing(step, place), on_nonfinite="skip")
        yield place, step


def digests(store: Any) -> dict[str, str]:
    return {name: store.table(name).digest() for name in TABLES}


@pytest.mark.parametrize("seed", range(3))
def test_checkpoint_after_an_exchange_has_every_batch_finished_by_then(
    backend: Any, seed: int
) -> None:
    """In a hot phase it had those of the last exchange, and nothing pushed the others or said how
    many it had."""
    store = tables_in(backend.open_store())
    chunks = chunks_of(generator(930 + seed), 500)
    hot_steps = 0
    with run_of(store) as run:
        for place, step in train(run, chunks):
            hot_steps += step.is_hot
            if step.is_hot and hot_steps == 4 + 3 * seed:
                assert run.stats()["stored_batches"] < place
                store.checkpoint("c", {"skip": run.exchange()})
                assert run.stats()["stored_batches"] == place
    wanted = digests(store)
    store.restore("c")
    skip = store.checkpoints()[-1].metadata["skip"]
    assert digests(store) != wanted
    with run_of(store) as run:
        places = [place for place, _ in train(run, chunks, skip)]
        assert run.stats()["stored_batches"] == places[-1]
    assert places[0] == skip + 1
    assert digests(store) == wanted


def test_batches_that_were_skipped_count_where_training_goes_on(twin: Any) -> None:
    """Those whose update was skipped, or that were skipped or released, are not in t, by which
    `skip` was to be known: seven were done, and t was 5."""
    chunks = ids(np.arange(100))
    with hot_run(twin.store, batch_size=10) as run:
        assert run.stats()["stored_batches"] == 0
        for number, step in enumerate(run.steps(chunks), 1):
            gradients = {"adam": ones(10, 5)}
            if number in (2, 3):
                gradients["adam"][0] = np.inf
            else:
                twin.reference.update({"adam": (step.keys["adam"], gradients["adam"])})
            step.update(gradients, on_nonfinite="skip")
            assert run.stats()["stored_batches"] == 0
            if number == 7:
                break
    assert (run.stats()["stored_batches"], run.stats()["hot_batches"]) == (7, 7)
    assert twin.store.table("adam").t == 5
    trainer = Trainer(twin.reference)
    with hot_run(twin.store, batch_size=10) as run:
        for step in run.steps(chunks, skip=7):
            trainer.train(step)
        assert run.stats()["stored_batches"] == 10
    assert trainer.numbers == [*range(70, 100)]


def test_exchange_between_any_two_steps_changes_no_bit(open_twin: Open) -> None:
    """And says what the store has: the batch at hand, once it is finished."""
    twin = tables_in(open_twin())
    trainer = Trainer(twin.reference)
    with run_of(twin.store) as run:
        assert run.exchange() == 0
        for number, step in enumerate(run.steps(chunks_of(generator(934), 300)), 1):
            if number % 3 == 0:
                assert run.exchange() == number - 1
            trainer.train(step)
            if number % 2 == 0:
                assert run.exchange() == number
                assert twin.store.table("sgd").t == number
        assert run.exchange() == number
    with pytest.raises(InvalidArgumentError, match="with block"):
        run.exchange()
    assert {*trainer.kinds} == {True, False}
    count_commands(twin)


def test_ranks_go_on_behind_a_checkpoint(backend: Any) -> None:
    store = tables_in(backend.open_store())
    skips: list[int] = []

    def work(rank: int, run: HotColdRun) -> None:
        chunks = chunks_of(np.random.default_rng([935, rank]), 300 + 90 * rank)
        skip = skips[0] if skips else 0
        hot_steps = 0
        for _, step in train(run, chunks, skip):
            hot_steps += step.is_hot
            if not skip and step.is_hot and hot_steps == 3:
                stored = run.exchange()
                if rank == 0:
                    store.checkpoint("c", {"skip": stored})

    train_ranks(store, work)
    wanted = digests(store)
    store.restore("c")
    skips.append(store.checkpoints()[-1].metadata["skip"])
    train_ranks(store, work)
    assert digests(store) == wanted


def test_exchange_of_one_rank_alone_is_refused(twin: Any) -> None:
    trainers = [Trainer(seed=rank) for rank in range(2)]

    def work(rank: int, run: HotColdRun) -> None:
        for step in run.steps(ids(np.arange(60))):
            with pytest.raises(InvalidArgumentError, match=r"exchange.*release|release.*exchange"):
                step.release() if rank else run.exchange()
            trainers[rank].train(step)

    train_ranks(twin.store, work, make=hot_run)
    replay(twin.reference, trainers)
    assert trainers[0].kinds == [True] * 3


# What is interrupted, or not answered


class InterruptAt:
    """Interrupts this thread at one line of the client's hot path, counted as they are run."""

    FILES = frozenset(m.__file__ for m in (replica_module, steps_module, update_module))

    def __init__(self, line: int) -> None:
        self._left = line
        self.where = ""  # Of the interrupt; empty where there was none.

    def __enter__(self) -> "InterruptAt":
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *failure: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self.FILES:
            return None
        if event == "line":
            self._left -= 1
            if not self._left:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._trace


def test_step_that_is_interrupted_anywhere_is_updated_once(twin: Any) -> None:
    """It said that it was not finished while its change was taken: tried again, it was applied
    twice, wherever Ctrl-C came after that."""
    chunks, share = ids(np.arange(20) % 13), {"adam": (np.arange(20) % 13, ones(20, 5))}
    gradients = {"adam": ones(20, 5)}
    lines, where = 0, "anywhere"
    while where:
        lines += 1
        with hot_run(twin.store) as run:
            for step in run.steps(chunks):
                interrupt = InterruptAt(lines)
                try:
                    with interrupt:
                        step.update(gradients)
                except KeyboardInterrupt:
                    if not step.is_finished:
                        step.update(gradients)
                assert step.is_finished
                with pytest.raises(InvalidArgumentError, match="was updated"):
                    step.update(gradients)
        where = interrupt.where
        twin.reference.update(share)
        assert twin.store.table("adam").t == lines, where
    assert lines > 50


class Lossy:
    """A store, or its sessions: the answer to one push is lost."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def put_rows(self, *args: Any) -> Any:
        done = self._wrapped.put_rows(*args)
        self.lost += 1
        if self.lost == 1:
            raise DeadlineError("lost")
        return done


def test_push_whose_answer_was_lost_counts_in_stats(twin: Any) -> None:
    """The store had its rows, and the stats said that none were pushed."""
    store = Lossy(twin.store)
    store.sessions = Lossy(twin.store.sessions)
    trainer = Trainer(twin.reference)
    with pytest.raises(DeadlineError), hot_run(store) as run:
        for step in run.steps(ids(np.arange(80) % 30)):
            trainer.train(step)
    stats = run.stats()
    assert (stats["pushed_rows"], stats["stored_batches"]) == (30, 4)
    assert stats["bytes"] == (stats["pulled_rows"] + 30) * 68
    assert store.sessions.lost == 1


# Ranks


def test_rank_whose_stream_is_empty_has_all_columns(twin: Any) -> None:
    """Its batches had the columns of ids alone: it failed at a label, and the others waited."""
    trainers = [Trainer(seed=rank) for rank in range(2)]
    full = [{"id": np.arange(60) % 30, "label": np.zeros((60, 2), np.float32)}]
    none = [{"id": np.empty(0, np.int64), "label": np.empty((0, 2), np.float32)}]

    def work(rank: int, run: HotColdRun) -> None:
        for step in run.steps(none if rank else full):
            assert step.batch["label"].shape == (0 if rank else 20, 2)
            assert step.batch["label"].dtype == np.float32
            trainers[rank].train(step)

    train_ranks(twin.store, work, make=hot_run)
    replay(twin.reference, trainers)
    assert trainers[1].kinds == [True] * 3


def test_rank_without_any_chunk_is_named_at_all_ranks(twin: Any) -> None:
    def work(rank: int, run: HotColdRun) -> None:
        with pytest.raises(InvalidArgumentError, match=r"a chunk of every rank.*\[1\]"):
            next(run.steps([] if rank else ids(np.arange(40))))

    train_ranks(twin.store, work, make=hot_run)

    def none(rank: int, run: HotColdRun) -> None:
        assert not [*run.steps([])]

    train_ranks(twin.store, none, make=hot_run)


def test_ranks_train_at_one_rate_though_it_changes_between_their_pulls(twin: Any) -> None:
    """Each took the rate of its own pull: their replicas parted, and nobody said so."""
    has_changed = threading.Event()

    class First(Replica):
        def refresh(self) -> int:
            count = super().refresh()
            twin.store.table("adam").learning_rate = 0.5
            has_changed.set()
            return count

    class Second(Replica):
        def refresh(self) -> int:
            assert has_changed.wait(60)
            return super().refresh()

    def make(store: Any, rank: int, **options: Any) -> HotColdRun:
        return hot_run(store, rank=rank, replica=Second if rank else First, **options)

    trainers = [Trainer(seed=rank) for rank in range(2)]

    def work(rank: int, run: HotColdRun) -> None:
        for step in run.steps(ids(np.arange(80) % 30)):
            trainers[rank].train(step)

    train_ranks(twin.store, work, make=make)
    replay(twin.reference, trainers)
    twin.reference.table("adam").learning_rate = 0.5


def test_replicas_that_have_parted_are_found_out(twin: Any) -> None:
    """Another t, or another rate, was compared by nobody."""
    meeting, trained = Meeting(2), {"adam": ([3], ones(1, 5))}
    replicas = [Replica(twin.store, HotSet({"adam": np.arange(9)})) for _ in range(2)]
    for rank, replica in enumerate(replicas):
        replica.pull()
        if rank == 0:
            twin.store.table("adam").learning_rate = twin.reference.table("adam").learning_rate = 2

    def both(**options: Any) -> list[Any]:
        def of_rank(rank: int) -> Any:
            try:
                return replicas[rank].update(trained, all_gather=meeting.of(rank), **options)
            except InvalidArgumentError as exc:
                return str(exc)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(of_rank, range(2)))

    assert all("learning rate" in said for said in both())
    assert [done.t for done in both(learning_rate=0.5)] == [{"adam": 1}] * 2
    replicas[1].update(trained)
    assert all("t and learning rate" in said for said in both(learning_rate=0.5))


@pytest.mark.parametrize("other", ["version", "keys"])
def test_ranks_with_other_hot_sets_are_told_at_once(twin: Any, other: str) -> None:
    """It was found out at the first key that one of them had not, after updates that others did."""

    def make(store: Any, rank: int, **options: Any) -> HotColdRun:
        keys = np.arange(20 + 20 * rank * (other == "keys"))
        hot_set = HotSet({"adam": keys}, version=1 + rank * (other == "version"))
        return HotColdRun(store, hot_set, {"id": "adam"}, batch_size=20, rank=rank, **options)

    def work(rank: int, run: HotColdRun) -> None:
        with pytest.raises(InvalidArgumentError, match=r"one hot set.*\[1\]"):
            next(run.steps(ids(np.arange(80) % 20)))

    train_ranks(twin.store, work, make=make)
    assert twin.store.table("adam").t == 0
