"""Hot/cold training is the same training as plain updates in the order in which its steps come."""

from contextlib import nullcontext

import numpy as np
import pytest

from embstore.config import Limits
from embstore.errors import InvalidArgumentError, SessionExpiredError, TableHeldError
from embstore.profiles.hotset import HotSet
from embstore_training.hotcold.ragged import Ragged
from embstore_training.hotcold.run import HotColdRun
from tests.conformance.cases import assert_same, generator, normal, ones
from tests.conformance.hotness.hotcold import (
    BATCH,
    COLUMNS,
    ROWS,
    TABLES,
    FailingPush,
    Trainer,
    chunks_of,
    hot_keys,
    hotcold_twin,
    replay,
    run_of,
)
from tests.conformance.traces import smallest_cache

CACHES = {"tiny": 0, "small": 96 << 10, "whole": 1 << 20}


@pytest.fixture
def twin(open_twin):
    return hotcold_twin(open_twin)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("rate", [1, 50, 100])
def test_it_trains_as_plain_updates_in_the_same_order(open_twin, backend, rate, cache):
    cache_bytes = CACHES[cache] or smallest_cache(backend, TABLES)
    twin = hotcold_twin(open_twin, cache_bytes=cache_bytes)
    rng, trainer = generator(901), Trainer(twin.reference)
    with run_of(twin.store, rate=rate, window_batches=8) as run:
        switches = 0
        for _ in range(2):  # two epochs
            before = len(trainer.kinds)
            trainer.train_all(run.steps(chunks_of(rng, 450)))
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


def test_all_hot_and_none_hot(twin):
    chunks = chunks_of(generator(902), 200)
    for keys in (np.arange(ROWS), np.empty(0, np.int64)):
        trainer = Trainer(twin.reference)
        hot_set = HotSet(dict.fromkeys(TABLES, keys))
        with HotColdRun(twin.store, hot_set, COLUMNS, batch_size=BATCH) as run:
            trainer.train_all(run.steps(chunks))
            stats = run.stats()
        assert set(trainer.kinds) == {bool(len(keys))}
        assert stats["hot_samples"] == (200 if len(keys) else 0)
        assert stats["pulled_rows"] == len(keys) * len(TABLES)
        twin.check()


@pytest.mark.parametrize("rate", [1, 100])
def test_samples_may_have_any_number_of_ids(open_twin, rate):
    """A ragged column, and one of a single id, of one table: bags of its samples."""
    twin = hotcold_twin(open_twin, adam=TABLES["adam"])
    rng, numbers, kinds = generator(930), [], set()
    hot_set = {"adam": hot_keys().tables["adam"].tolist()}
    columns = {"seen": "adam", "id": "adam"}
    chunks = [ragged_chunk(rng, first, 70) for first in range(0, 350, 70)]
    counts = np.concatenate([np.diff(chunk["seen"].offsets) for chunk in chunks])
    with HotColdRun(twin.store, hot_set, columns, batch_size=BATCH, rate=rate) as run:
        for place, step in enumerate(run.steps(chunks)):
            table, mode = twin.reference.table("adam"), ("sum", "mean")[place % 2]
            keys, offsets = step.keys["adam"], step.offsets["adam"]
            found = step.lookup_pooled(step.offsets, mode)["adam"]
            assert len(found) == 2 * len(step.batch["number"])
            assert_same(found, table.lookup_pooled(keys, offsets, mode))
            gradients = normal(rng, *found.shape)
            step.update_pooled({"adam": gradients})
            table.update_pooled(keys, offsets, gradients, mode)
            numbers += step.batch["number"].tolist()
            held = np.diff(step.batch["seen"].offsets)
            assert held.tolist() == counts[step.batch["number"]].tolist()
            kinds.add(step.is_hot)
    assert sorted(numbers) == [*range(350)]
    assert kinds == {True, False}


def ragged_chunk(rng, first, samples):
    """Return numbered samples of up to nine ids and one more; about half of them are hot."""
    lengths = rng.integers(0, 10, samples)
    ids = rng.integers(0, ROWS, lengths.sum() + samples)
    hot = rng.choice(hot_keys().tables["adam"], len(ids))
    of = np.concatenate([np.repeat(np.arange(samples), lengths), np.arange(samples)])
    ids = np.where(of % 2, ids, hot)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    seen = Ragged(ids[: lengths.sum()].astype(np.int32), offsets)
    return {"number": first + np.arange(samples), "seen": seen, "id": ids[lengths.sum() :]}


def test_table_without_keys_counts_its_updates(open_twin):
    """A column may have no ids at all; t grows all the same, also if nothing else is sent."""
    twin = hotcold_twin(open_twin, adam=TABLES["adam"], sgd=TABLES["sgd"])
    ids = np.zeros((40, 0), np.int64)
    trainer = Trainer(twin.reference)
    hot_set = HotSet({"adam": np.arange(3), "sgd": np.arange(0)})
    columns = {"a": "adam", "b": "sgd"}
    chunk = {"a": np.arange(40) % 4, "b": ids, "number": np.arange(40)}
    with HotColdRun(twin.store, hot_set, columns, batch_size=8) as run:
        trainer.train_all(run.steps([chunk]))
    assert twin.store.table("sgd").t == len(trainer.kinds) == 6
    assert sum(trainer.kinds) == 4


@pytest.mark.parametrize("is_hot", [False, True], ids=["mixed", "hot"])
def test_rates_are_set_and_rows_deleted_between_runs_only(twin, is_hot):
    """Hot steps could follow neither, and trained on with the previous rate and the old rows."""
    trainer = Trainer(twin.reference)
    for rate in (0.5, 0.25):
        for table in TABLES:
            twin.store.table(table).learning_rate = rate
            twin.reference.table(table).learning_rate = rate
        refusals = 0
        with run_of(twin.store) as run:
            for step in run.steps(chunks_of(generator(905), 300)):
                if step.is_hot == is_hot:
                    for change in (
                        lambda: setattr(twin.store.table("adam"), "learning_rate", 2.0),
                        lambda: twin.store.table("adam").delete([0]),
                    ):
                        with pytest.raises((InvalidArgumentError, TableHeldError)):
                            change()
                        refusals += 1
                trainer.train(step)
        assert refusals > 4
        twin.check()


# What is exchanged, and when


def calls_of(store):
    """Return what a store has been asked to do: by its server's own count, or by its figures."""
    if hasattr(store, "server"):
        totals = store.server.on_engine(lambda _: store.server.service.metrics.stats())
        return {verb: t["codes"] for verb, t in totals.items() if verb != "RenewLease"}
    figures = store.stats()
    pools = [
        {n: v for n, v in pool.items() if not n.endswith("_rows")}
        for pool in figures["cache"]["pools"]
    ]
    return figures["command"], figures["stages"], pools


def test_hot_batches_make_no_call_to_the_store(twin):
    trainer = Trainer()
    hot_phases = 0
    with run_of(twin.store, rate=50) as run:
        before = None
        for step in run.steps(chunks_of(generator(906), 600)):
            if not step.is_hot:
                before = None
                trainer.train(step)
                continue
            if before is None:
                before = run.stats()["store_calls"], calls_of(twin.store)
                hot_phases += 1
            trainer.train(step)
            assert (run.stats()["store_calls"], calls_of(twin.store)) == before
    assert hot_phases > 1
    replay(twin.reference, [trainer])


def test_only_rows_that_changed_are_exchanged(twin):
    """After the first time: mixed batches' hot rows come, hot batches' rows go, with each phase."""
    hot = hot_keys().tables
    trainer = Trainer(twin.reference)
    pulled = pushed = 0
    touched = {t: {*k.tolist()} for t, k in hot.items()}
    trained = {t: set() for t in hot}
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


def test_dirty_rows_are_pushed_before_they_are_more_than_a_call_takes(open_twin):
    twin = hotcold_twin(open_twin, limits=Limits(call_bytes_max=24 << 10))
    trainer = Trainer(twin.reference)
    hot_set = HotSet(dict.fromkeys(TABLES, np.arange(ROWS)))
    chunks = chunks_of(generator(908), 600)
    with HotColdRun(twin.store, hot_set, COLUMNS, batch_size=5) as run:
        trainer.train_all(run.steps(chunks))
        assert run.stats()["pushed_rows"] > 200
    assert all(trainer.kinds)
    assert twin.store.command > 4 + 2


def test_a_checkpoint_without_an_exchange_is_warned_of(twin):
    """Where it would lack rows, and there alone."""
    trainer, warned = Trainer(twin.reference), set()
    with run_of(twin.store) as run:
        for number, step in enumerate(run.steps(chunks_of(generator(926), 400))):
            if number == 7 and step.is_hot:
                step.release()  # of which no row is trained
            else:
                trainer.train(step)
            lacks = step.is_hot and step.is_finished and number != 7
            text = "does not have the training of hot rows since the last exchange"
            with pytest.warns(UserWarning, match=text) if lacks else nullcontext() as told:
                twin.store.checkpoint(f"first {number}")
            assert not lacks or [w.filename for w in told] == [__file__]
            run.exchange()
            twin.store.checkpoint(f"then {number}")
            warned.add(lacks)
    twin.store.checkpoint("after the run")
    assert warned == {True, False}


def test_tables_are_held(twin):
    trainer = Trainer(twin.reference)
    with run_of(twin.store) as run:
        for step in run.steps(chunks_of(generator(909), 200)):
            with pytest.raises(TableHeldError):
                twin.store.table("sgd").update([1], ones(1, 4))
            with pytest.raises(TableHeldError), run_of(twin.store, wait_s=0):
                pass
            trainer.train(step)
    twin.on("sgd", "update", [1], ones(1, 4))  # nobody holds it any more


# Leaving early


@pytest.mark.parametrize("how", ["break", "raise", "interrupt"])
@pytest.mark.parametrize("in_hot", [True, False])
def test_leaving_early_keeps_what_was_trained(twin, how, in_hot):
    trainer = Trainer(twin.reference)
    error = {"raise": RuntimeError, "interrupt": KeyboardInterrupt}.get(how)

    def leave_early():
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
            twin.check()

    with pytest.raises(error) if error else nullcontext():
        leave_early()
    twin.check()


def test_session_that_has_ended_leaves_the_store_as_at_the_last_exchange(twin):
    """And with the batches left out that the store has, training goes on as if nothing was."""
    chunks = chunks_of(generator(911), 500)
    trainer = Trainer(twin.reference)
    at_exchange = None
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
    twin.check()
    assert all(twin.store.table(t).t == stored for t in TABLES)
    assert run.stats()["stored_batches"] == stored
    again = Trainer(twin.reference)
    with run_of(twin.store, name="run") as run:
        again.train_all(run.steps(chunks, skip=stored))
    samples = sum(len(step.share["adagrad"][0]) for step in trainer.steps[:stored])
    assert sorted(trainer.numbers[:samples] + again.numbers) == [*range(500)]


def test_store_that_is_gone_does_not_hide_why_the_loop_was_left(twin):
    trainer = Trainer(twin.reference)
    at_exchange = None
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
    twin.check()


def test_block_may_be_entered_again(twin):
    """Others may have written in between: all rows come anew."""
    trainer = Trainer(twin.reference)
    run = run_of(twin.store)
    for _ in range(3):
        with run:
            trainer.train_all(run.steps(chunks_of(generator(923), 150)))
        twin.on("adam", "assign", [0, 7919 % ROWS], ones(2, 5))
        twin.on("sgd", "update", [0], ones(1))


def test_hot_set_of_the_cache_may_be_another(twin):
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


@pytest.mark.parametrize("is_done", [True, False])
def test_push_that_is_interrupted_counts_once(twin, is_done):
    trainer = Trainer(twin.reference)
    store = FailingPush.of(twin.store, KeyboardInterrupt(), is_done)
    with pytest.raises(KeyboardInterrupt), run_of(store) as run:
        trainer.train_all(run.steps(chunks_of(generator(913), 300)))
    assert any(trainer.kinds)
