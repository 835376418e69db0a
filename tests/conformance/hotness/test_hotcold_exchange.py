"""Exchanges of hot rows between store and replica: when, how much, and what an interrupt leaves.

A review found each; it says what went wrong.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from embstore.config import Limits
from embstore.errors import DeadlineError, InvalidArgumentError
from embstore_training.hotcold import replica as replica_module
from embstore_training.hotcold import steps as steps_module
from embstore_training.hotcold import update as update_module
from tests.conformance.cases import generator, ones
from tests.conformance.hotness.hotcold import (
    ROWS,
    TABLES,
    FailingPush,
    Trainer,
    chunks_of,
    hot_run,
    hotcold_twin,
    ids,
    replay,
    run_of,
    train_ranks,
)
from tests.conformance.twin import digests

CALL_BYTES = 20_000
CALL_ROWS = 294
"""Rows of a push that a call of so many bytes takes, of 68 bytes each: key, weights and state."""


@pytest.fixture
def twin(open_twin):
    return hotcold_twin(open_twin, adam=TABLES["adam"])


@pytest.fixture
def small_calls(open_twin):
    """Return a twin whose calls take few rows, and whose table is all hot."""
    limits = Limits(call_bytes_max=CALL_BYTES)
    made = hotcold_twin(open_twin, limits=limits, adam=TABLES["adam"])
    yield made
    made.reopen(limits=Limits())  # What is compared at the end is more than such a call.


# Hot rows are never more than one push takes


@pytest.mark.parametrize("first", [1, 140, CALL_ROWS])
def test_hot_rows_are_pushed_before_they_could_exceed_a_call(small_calls, first):
    """They were counted after the step, against half a call: a push of 370 rows was refused for
    ever, and what they had learned was lost."""
    trainer = Trainer(small_calls.reference)
    chunks = ids(np.arange(CALL_ROWS) % first, np.arange(300, 300 + CALL_ROWS))
    with hot_run(small_calls.store, batch_size=CALL_ROWS) as run:
        trainer.train_all(run.steps(chunks))
        assert run.stats()["pushed_rows"] == first + CALL_ROWS
    assert trainer.kinds == [True, True]


def test_hot_batch_that_no_push_takes_is_trained_as_a_mixed_one(small_calls):
    """It was trained on the replica, and could never be pushed."""
    trainer = Trainer(small_calls.reference)
    size = CALL_ROWS + 1
    few = np.arange(size) % 7
    with hot_run(small_calls.store, batch_size=size) as run:
        trainer.train_all(run.steps(ids(np.arange(size), few, np.arange(size), few)))
    assert trainer.kinds == [False, True, False, True]


@pytest.mark.parametrize("rows", [40, 100, 147, 148])
def test_rows_of_all_ranks_are_never_more_than_one_push_takes(small_calls, rows):
    """Each rank's batch is small, and both together train twice as many rows."""
    trainers = [Trainer(seed=rank) for rank in range(2)]

    def work(rank, run):
        keys = np.arange(rank * 300, rank * 300 + 5 * rows) % ROWS
        trainers[rank].train_all(run.steps(ids(keys)))

    train_ranks(small_calls.store, work, make=hot_run, batch_size=rows)
    replay(small_calls.reference, trainers)
    assert trainers[0].kinds == trainers[1].kinds == [2 * rows <= CALL_ROWS] * 5


# Going on


def overflowing(step, place):
    """Return a step's gradients, those of every fourth batch not finite."""
    gradients = {t: 0.5 * rows + np.float32(place) for t, rows in step.lookup().items()}
    if place % 4 == 1:
        for of_table in gradients.values():
            of_table[:1] = np.inf
    return gradients


def store_with_tables(backend):
    store = backend.open_store()
    for name, given in TABLES.items():
        store.create_table(name, **given)
    return store


def train(run, chunks, skip=0):
    """Train a stream whose gradients overflow now and then; yield how many batches are done."""
    for place, step in enumerate(run.steps(chunks, skip=skip), skip + 1):
        if place % 7 == 3:
            step.skip()
        else:
            step.update(overflowing(step, place), on_nonfinite="skip")
        yield place, step


@pytest.mark.parametrize("seed", range(3))
def test_checkpoint_after_an_exchange_has_every_batch_finished_by_then(backend, seed):
    """In a hot phase it had those of the last exchange, and nothing pushed the others or said how
    many it had."""
    store = store_with_tables(backend)
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


def test_batches_that_were_skipped_count_where_training_goes_on(twin):
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
        trainer.train_all(run.steps(chunks, skip=7))
        assert run.stats()["stored_batches"] == 10
    assert trainer.numbers == [*range(70, 100)]


def test_exchange_between_any_two_steps_changes_no_bit(open_twin):
    """And says what the store has: the batch at hand, once it is finished."""
    twin = hotcold_twin(open_twin)
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


def test_ranks_go_on_behind_a_checkpoint(backend):
    store = store_with_tables(backend)
    skips = []

    def work(rank, run):
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


def test_exchange_of_one_rank_alone_is_refused(twin):
    trainers = [Trainer(seed=rank) for rank in range(2)]

    def work(rank, run):
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

    def __init__(self, line):
        self._left = line
        self.where = ""  # Of the interrupt; empty where there was none.

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *failure):
        sys.settrace(self._before)

    def _trace(self, frame, event, _):
        if frame.f_code.co_filename not in self.FILES:
            return None
        if event == "line":
            self._left -= 1
            if not self._left:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._trace


def test_step_that_is_interrupted_anywhere_is_updated_once(twin):
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


def test_push_whose_answer_was_lost_counts_in_stats(twin):
    """The store had its rows, and the stats said that none were pushed."""
    store = FailingPush.of(twin.store, DeadlineError("lost"))
    trainer = Trainer(twin.reference)
    with pytest.raises(DeadlineError), hot_run(store) as run:
        trainer.train_all(run.steps(ids(np.arange(80) % 30)))
    stats = run.stats()
    assert (stats["pushed_rows"], stats["stored_batches"]) == (30, 4)
    assert stats["bytes"] == (stats["pulled_rows"] + 30) * 68
    assert store.sessions.pushes == 1
