"""Hot/cold training is the same training as plain updates in the order in which its steps come."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from embstore.config import Limits
from embstore.errors import InvalidArgumentError, SessionExpiredError, TableHeldError
from embstore.frequency.hotset import HotSet
from embstore_client.hotcold.replica import Replica
from embstore_client.hotcold.rows import HostRows
from embstore_client.hotcold.run import HotColdRun
from tests.conformance.cases import assert_same, generator, ones
from tests.conformance.hotcold import (
    BATCH,
    COLUMNS,
    ROWS,
    TABLES,
    Trainer,
    chunks_of,
    count_commands,
    hot_keys,
    replay,
    run_of,
    tables_in,
)
from tests.conformance.traces import smallest_cache

Open = Callable[..., Any]
CACHES = {"tiny": 0, "small": 96 << 10, "whole": 1 << 20}


@pytest.fixture
def twin(open_twin: Open) -> Iterator[Any]:
    made = tables_in(open_twin())
    yield made
    count_commands(made)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("rate", [1, 50, 100])
def test_it_trains_as_plain_updates_in_the_same_order(
    open_twin: Open, backend: Any, rate: int, cache: str
) -> None:
    cache_bytes = CACHES[cache] or smallest_cache(backend, TABLES)
    twin = tables_in(open_twin(cache_bytes=cache_bytes))
    rng, trainer = generator(901), Trainer(twin.reference)
    with run_of(twin.store, rate=rate, window_batches=8) as run:
        switches = 0
        for _ in range(2):  # two epochs
            before = len(trainer.kinds)
            for step in run.steps(chunks_of(rng, 450)):
                trainer.train(step)
            switches += np.count_nonzero(np.diff([0, *trainer.kinds[before:], 0]))
            for name in TABLES:
                twin.check_table(name)  # the store has all when a loop has ended
        stats = run.stats()
    assert sorted(trainer.numbers) == sorted([*range(450)] * 2)
    assert stats["hot_batches"] == sum(trainer.kinds) > 10
    assert stats["mixed_batches"] == len(trainer.kinds) - sum(trainer.kinds) > 10
    assert stats["hot_samples"] + stats["mixed_samples"] == 900
    assert stats["switches"] == switches
    assert stats["hot_set_version"] == run.hot_set.version == 7
    count_commands(twin)


def test_all_hot_and_none_hot(twin: Any) -> None:
    chunks = chunks_of(generator(902), 200)
    for keys in (np.arange(ROWS), np.empty(0, np.int64)):
        trainer = Trainer(twin.reference)
        hot_set = HotSet(dict.fromkeys(TABLES, keys))
        with HotColdRun(twin.store, hot_set, COLUMNS, batch_size=BATCH) as run:
            for step in run.steps(chunks):
                trainer.train(step)
            stats = run.stats()
        assert set(trainer.kinds) == {bool(len(keys))}
        assert stats["hot_samples"] == (200 if len(keys) else 0)
        assert stats["pulled_rows"] == len(keys) * len(TABLES)
        count_commands(twin)
        twin.check()


def test_steps_may_be_released_and_skipped(twin: Any) -> None:
    trainer = Trainer(twin.reference)
    with run_of(twin.store) as run:
        for place, step in enumerate(run.steps(chunks_of(generator(903), 400))):
            if place % 4 == 0:
                step.lookup()
            elif place % 4 == 1:
                step.skip()
                assert step.is_finished
            elif place % 4 == 2:
                step.release()
            else:
                trainer.train(step)
    assert {*trainer.kinds} == {True, False}


def test_what_is_not_finite_is_refused_or_skipped(twin: Any) -> None:
    trainer = Trainer(twin.reference)
    seen = set()
    with run_of(twin.store) as run:
        for step in run.steps(chunks_of(generator(904), 300)):
            gradients = {t: ones(len(k), TABLES[t]["dim"]) for t, k in step.keys.items()}
            gradients["adam"][0] = np.inf
            before = step.lookup()
            with pytest.raises(InvalidArgumentError, match=f"adam.*key {step.keys['adam'][0]}\\b"):
                step.update(gradients)
            with pytest.raises(InvalidArgumentError):
                step.update({t: g * 3e38 for t, g in gradients.items()}, gradient_scale=3e38)
            assert not step.is_finished
            for table, rows in step.lookup().items():
                assert_same(rows, before[table])
            if len(trainer.kinds) % 2 or step.is_hot in seen:
                trainer.train(step)
            else:
                done = step.update(gradients, on_nonfinite="skip")
                assert done.skipped
                assert done.t == {t: twin.reference.table(t).t for t in TABLES}
                seen.add(step.is_hot)
    assert seen == {True, False}


def test_table_without_keys_counts_its_updates(open_twin: Open) -> None:
    """A column may have no ids at all; t grows all the same, also if nothing else is sent."""
    twin = open_twin()
    for name in ("adam", "sgd"):
        twin.create_table(name, **TABLES[name])
    ids = np.zeros((40, 0), np.int64)
    trainer = Trainer(twin.reference)
    hot_set = HotSet({"adam": np.arange(3), "sgd": np.arange(0)})
    columns = {"a": "adam", "b": "sgd"}
    chunk = {"a": np.arange(40) % 4, "b": ids, "number": np.arange(40)}
    with HotColdRun(twin.store, hot_set, columns, batch_size=8) as run:
        for step in run.steps([chunk]):
            trainer.train(step)
    assert twin.store.table("sgd").t == len(trainer.kinds) == 6
    assert sum(trainer.kinds) == 4
    count_commands(twin)


def test_learning_rate_is_that_of_the_last_exchange(twin: Any) -> None:
    chunks = chunks_of(generator(905), 300)
    for table in TABLES:
        twin.store.table(table).learning_rate = twin.reference.table(table).learning_rate = 0.5
    with run_of(twin.store) as run:
        for rate in (0.5, 0.25):
            for table in TABLES:
                twin.store.table(table).learning_rate = rate
                twin.reference.table(table).learning_rate = rate
            for step in run.steps(chunks):
                gradients = {t: ones(len(k), TABLES[t]["dim"]) for t, k in step.keys.items()}
                step.update(gradients)
                twin.reference.update({t: (step.keys[t], g) for t, g in gradients.items()})
    count_commands(twin)


# What is exchanged, and when


def calls_of(store: Any) -> Any:
    """Return what a store has been asked to do: by its server's own count, or by its figures."""
    if hasattr(store, "server"):
        totals = store.server._service.metrics.totals()
        return {verb: t["codes"] for verb, t in totals.items() if verb != "RenewLease"}
    figures = store.stats()
    pools = [
        {n: v for n, v in pool.items() if n not in ("resident_rows", "dirty_rows")}
        for pool in figures["cache"]["pools"]
    ]
    return figures["command"], figures["stages"], pools


def test_hot_batches_make_no_call_to_the_store(twin: Any) -> None:
    trainer = Trainer()
    hot_phases = 0
    with run_of(twin.store, rate=50) as run:
        before: Any = None
        for step in run.steps(chunks_of(generator(906), 600)):
            if not step.is_hot:
                before = None
                trainer.train(step)
                continue
            if before is None:
                before, hot_phases = (
                    (run.stats()["store_calls"], calls_of(twin.store)),
                    hot_phases + 1,
                )
            trainer.train(step)
            assert (run.stats()["store_calls"], calls_of(twin.store)) == before
    assert hot_phases > 1
    replay(twin.reference, [trainer])


def test_only_rows_that_changed_are_exchanged(twin: Any) -> None:
    """After the first time: mixed batches' hot rows come, hot batches' rows go, with each phase."""
    hot = hot_keys().tables
    trainer = Trainer(twin.reference)
    pulled = pushed = 0
    touched: dict[str, set[int]] = {t: {*k.tolist()} for t, k in hot.items()}
    trained: dict[str, set[int]] = {t: set() for t in hot}
    with run_of(twin.store, rate=50) as run:
        was_hot = False
        for step in run.steps(chunks_of(generator(907), 600)):
            if step.is_hot != was_hot:
                moved = touched if step.is_hot else trained
                if step.is_hot:
                    pulled += sum(map(len, moved.values()))
                else:
                    pushed += sum(map(len, moved.values()))
                for keys in moved.values():
                    keys.clear()
                assert run.stats()["pulled_rows"] == pulled
                assert run.stats()["pushed_rows"] == pushed
            was_hot = step.is_hot
            for table, keys in step.keys.items():
                now = {*np.intersect1d(keys, hot[table]).tolist()}
                (trained if was_hot else touched)[table] |= now
            trainer.train(step)
    assert pushed > 0
    assert run.stats()["bytes"] > 0
    count_commands(twin)


@pytest.mark.needs("limits")
def test_dirty_rows_are_pushed_before_they_are_more_than_a_call_takes(open_twin: Open) -> None:
    twin = tables_in(open_twin(limits=Limits(call_bytes_max=24 << 10)))
    trainer = Trainer(twin.reference)
    hot_set = HotSet(dict.fromkeys(TABLES, np.arange(ROWS)))
    chunks = chunks_of(generator(908), 600)
    with HotColdRun(twin.store, hot_set, COLUMNS, batch_size=5) as run:
        for step in run.steps(chunks):
            trainer.train(step)
        assert run.stats()["pushed_rows"] > 200
    assert all(trainer.kinds)
    assert twin.store.command > 4 + 2
    count_commands(twin)


def test_tables_are_held(twin: Any) -> None:
    trainer = Trainer(twin.reference)
    with run_of(twin.store) as run:
        for step in run.steps(chunks_of(generator(909), 200)):
            with pytest.raises(TableHeldError):
                twin.store.table("sgd").update([1], ones(1, 4))
            with pytest.raises(TableHeldError), run_of(twin.store):
                pass
            trainer.train(step)
    count_commands(twin)
    twin.on("sgd", "update", [1], ones(1, 4))  # nobody holds it any more


# Leaving early


@pytest.mark.parametrize("how", ["break", "raise", "interrupt"])
@pytest.mark.parametrize("in_hot", [True, False])
def test_leaving_early_keeps_what_was_trained(twin: Any, how: str, in_hot: bool) -> None:
    trainer = Trainer(twin.reference)
    error = {"raise": RuntimeError, "interrupt": KeyboardInterrupt}.get(how)

    def leave_early() -> None:
        with run_of(twin.store) as run:
            for step in run.steps(chunks_of(generator(910), 400)):
                if len(trainer.kinds) > 4 and [in_hot, in_hot] == [step.is_hot, trainer.kinds[-1]]:
                    if error is None:
                        break
                    raise error
                trainer.train(step)
            assert error is None
            with pytest.raises(InvalidArgumentError, match="another run"):
                next(run.steps([]))
            assert run.exchange() == len(trainer.kinds)
            count_commands(twin)
            twin.check()

    if error is None:
        leave_early()
    else:
        with pytest.raises(error):
            leave_early()
    count_commands(twin)
    twin.check()


def test_session_that_has_ended_leaves_the_store_as_at_the_last_exchange(twin: Any) -> None:
    """And with the batches left out that the store has, training goes on as if nothing was."""
    chunks = chunks_of(generator(911), 500)
    trainer = Trainer(twin.reference)
    at_exchange: Any = None
    stored = 0
    with pytest.raises(SessionExpiredError), run_of(twin.store, name="run") as run:
        for step in run.steps(chunks):
            if step.is_hot and not (trainer.kinds and trainer.kinds[-1]):
                at_exchange, stored = twin.reference.snapshot(), len(trainer.kinds)
            trainer.train(step)
            if len(trainer.kinds) > 12 and sum(trainer.kinds[-3:]) == 3:
                twin.store.sessions.close(run._session.member)
                break
    twin.reference.restore(at_exchange)
    count_commands(twin)
    twin.check()
    assert all(twin.store.table(t).t == stored for t in TABLES)
    assert run.stats()["stored_batches"] == stored
    again = Trainer(twin.reference)
    with run_of(twin.store, name="run") as run:
        for step in run.steps(chunks, skip=stored):
            again.train(step)
    samples = sum(len(step.share["adagrad"][0]) for step in trainer.steps[:stored])
    assert sorted(trainer.numbers[:samples] + again.numbers) == [*range(500)]
    count_commands(twin)


def test_store_that_is_gone_does_not_hide_why_the_loop_was_left(twin: Any) -> None:
    trainer = Trainer(twin.reference)
    at_exchange: Any = None
    with pytest.raises(RuntimeError, match="enough") as caught, run_of(twin.store) as run:
        for step in run.steps(chunks_of(generator(922), 400)):
            if step.is_hot and not (trainer.kinds and trainer.kinds[-1]):
                at_exchange = twin.reference.snapshot()
            trainer.train(step)
            if trainer.kinds[-3:] == [False, True, True]:
                twin.store.close()
                raise RuntimeError("enough")
    assert any("since the last exchange is lost" in note for note in caught.value.__notes__)
    twin.reference.restore(at_exchange)
    twin.reopen()
    count_commands(twin)
    twin.check()


def test_block_may_be_entered_again(twin: Any) -> None:
    """Others may have written in between: all rows come anew."""
    trainer = Trainer(twin.reference)
    run = run_of(twin.store)
    for _ in range(3):
        with run:
            for step in run.steps(chunks_of(generator(923), 150)):
                trainer.train(step)
        count_commands(twin)
        twin.on("adam", "assign", [0, 7919 % ROWS], ones(2, 5))
        twin.on("sgd", "update", [0], ones(1))


def test_hot_set_of_the_cache_may_be_another(twin: Any) -> None:
    """What is pinned there changes while a run keeps its own."""
    trainer = Trainer(twin.reference)
    with run_of(twin.store) as run:
        for place, step in enumerate(run.steps(chunks_of(generator(924), 400))):
            if place % 3 == 0:
                keys = np.arange(place, place + 40)
                pinned = twin.store.pin_hot_set(HotSet({"sgd": keys}, version=place + 1))
                assert pinned.version == place + 1
            trainer.train(step)
        assert run.stats()["hot_set_version"] == 7
    assert {*trainer.kinds} == {True, False}
    count_commands(twin)


class InterruptedRows(HostRows):
    """Rows whose writing is interrupted once, after so many writes."""

    left = -1

    def write(self, slots: Any, weights: Any, state: Any) -> None:
        if InterruptedRows.left == 0:
            InterruptedRows.left = -1
            raise KeyboardInterrupt
        InterruptedRows.left -= InterruptedRows.left > 0
        super().write(slots, weights, state)


class InterruptedReplica(Replica):
    """A replica of such rows."""

    def _make_rows(self, config: Any, count: int) -> Any:
        return InterruptedRows(config, count)


@pytest.mark.parametrize("writes", range(4))
def test_update_that_is_interrupted_is_done_whole(twin: Any, writes: int) -> None:
    trainer = Trainer(twin.reference)
    with (
        pytest.raises(KeyboardInterrupt),
        run_of(twin.store, replica=InterruptedReplica) as run,
    ):
        for step in run.steps(chunks_of(generator(912), 300)):
            if sum(trainer.kinds) == 2 and step.is_hot:
                InterruptedRows.left = writes
                gradients = {t: ones(len(k), TABLES[t]["dim"]) for t, k in step.keys.items()}
                twin.reference.update({t: (step.keys[t], g) for t, g in gradients.items()})
                step.update(gradients)
            trainer.train(step)
    count_commands(twin)


class Sessions:
    """A store's sessions; a push is interrupted once, before or after it is done."""

    def __init__(self, sessions: Any, is_done: bool) -> None:
        self._sessions, self._is_done, self._is_over = sessions, is_done, False

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._sessions, verb)

    def put_rows(self, *args: Any) -> Any:
        if self._is_over:
            return self._sessions.put_rows(*args)
        self._is_over = True
        if self._is_done:
            self._sessions.put_rows(*args)
        raise KeyboardInterrupt


class Interrupted:
    """A store with such sessions."""

    def __init__(self, store: Any, is_done: bool) -> None:
        self._store, self.sessions = store, Sessions(store.sessions, is_done)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("is_done", [True, False])
def test_push_that_is_interrupted_counts_once(twin: Any, is_done: bool) -> None:
    trainer = Trainer(twin.reference)
    with (
        pytest.raises(KeyboardInterrupt),
        run_of(Interrupted(twin.store, is_done)) as run,
    ):
        for step in run.steps(chunks_of(generator(913), 300)):
            trainer.train(step)
    assert any(trainer.kinds)
    count_commands(twin)
