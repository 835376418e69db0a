"""Several ranks' hot/cold training is one of all their samples, step by step."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError, RankFailedError, SessionExpiredError
from embstore.profiles.hotset import HotSet
from embstore_training.hotcold.replica import Replica
from embstore_training.hotcold.run import HotColdRun
from tests.conformance.cases import generator, ones
from tests.conformance.hotness.hotcold import (
    Trainer,
    chunks_of,
    hot_run,
    hotcold_twin,
    ids,
    ones_for,
    replay,
    run_of,
    share_of,
    train_ranks,
)
from tests.conformance.meeting import Meeting


@pytest.fixture
def twin(open_twin):
    return hotcold_twin(open_twin)


@pytest.mark.parametrize(("ranks", "rate"), [(2, 1), (2, 50), (3, 100)])
def test_ranks_train_as_one_update_of_all(twin, ranks, rate):
    """Each has its own samples, not as many as the others, and its own hot and mixed phases."""
    trainers = [Trainer(seed=rank) for rank in range(ranks)]

    def work(rank, run):
        for epoch in range(2):
            rng = np.random.default_rng([914, rank, epoch])
            trainers[rank].train_all(run.steps(chunks_of(rng, 300 + 90 * rank)))
        return run.stats()

    generator(914)
    stats = train_ranks(twin.store, work, ranks, rate=rate, window_batches=8)
    replay(twin.reference, trainers)
    for rank, trainer in enumerate(trainers):
        assert trainer.kinds == trainers[0].kinds
        assert sorted(trainer.numbers) == sorted([*range(300 + 90 * rank)] * 2)
    assert {*trainers[0].kinds} == {True, False}
    assert stats[0]["pushed_rows"] > 0
    assert all(s["pushed_rows"] == 0 for s in stats[1:])


def test_ranks_must_update_alike(twin):
    def work(rank, run):
        refused = 0
        for step in run.steps(chunks_of(np.random.default_rng(915), 200)):
            gradients = ones_for(step)
            if step.is_hot:
                with pytest.raises(InvalidArgumentError, match="same options"):
                    step.update(gradients, gradient_scale=0.5 + rank)
                with pytest.raises(InvalidArgumentError, match=r"update.*release"):
                    step.release() if rank else step.update(gradients)
                refused += 1
            step.update(gradients, gradient_scale=0.5)
            if rank == 0:
                share = share_of(step, gradients)
                twin.reference.update_ranks([share, share], gradient_scale=0.5)
        return refused

    assert min(train_ranks(twin.store, work)) > 2


def test_rank_that_cannot_push_is_named(twin):
    members = {}

    def work(rank, run):
        members[rank] = run._session.member
        for step in run.steps(chunks_of(np.random.default_rng(916), 300)):
            if not step.is_hot:
                step.release()
                continue
            step.update(step.lookup())
            if rank == 0:
                for member in members.values():
                    twin.store.sessions.close(member)

    def failing(rank, run):
        expected = (RankFailedError, "rank 0") if rank else (SessionExpiredError, "closed")
        with pytest.raises(expected[0], match=expected[1]):
            work(rank, run)

    with pytest.raises(SessionExpiredError):  # as rank 0 leaves its block, with rows unsent
        train_ranks(twin.store, failing)


def test_rank_that_leaves_takes_no_update_with_it(twin):
    """Rank 0 pushes the updates that all ranks have had a part in, and no other."""
    trainers = [Trainer(seed=rank) for rank in range(2)]

    def work(rank, run):
        for step in run.steps(chunks_of(np.random.default_rng([918, rank]), 400)):
            if rank == 1 and sum(trainers[1].kinds) > 5 and step.is_hot:
                raise RuntimeError("rank 1 has had enough")
            trainers[rank].train(step)

    with pytest.raises((RuntimeError, threading.BrokenBarrierError)):
        train_ranks(twin.store, work)
    replay(twin.reference, trainers, min(len(trainer.steps) for trainer in trainers))


def test_hook_that_answers_wrong_is_found_out(twin):
    wrong = [lambda share: [share, share], lambda share: [share], lambda share: [{}, {}]]
    for hook in wrong:
        with (
            pytest.raises(InvalidArgumentError, match="all_gather"),
            run_of(twin.store, name="run", world_size=2, rank=0, all_gather=hook) as run,
        ):
            next(run.steps(chunks_of(generator(917), 100)))
    with pytest.raises(InvalidArgumentError, match="2 ranks"):
        run_of(twin.store, name="run", world_size=2)


def test_rank_whose_stream_is_empty_has_all_columns(twin):
    """Its batches had the columns of ids alone: it failed at a label, and the others waited."""
    trainers = [Trainer(seed=rank) for rank in range(2)]
    full = [{"id": np.arange(60) % 30, "label": np.zeros((60, 2), np.float32)}]
    none = [{"id": np.empty(0, np.int64), "label": np.empty((0, 2), np.float32)}]

    def work(rank, run):
        for step in run.steps(none if rank else full):
            assert step.batch["label"].shape == (0 if rank else 20, 2)
            assert step.batch["label"].dtype == np.float32
            trainers[rank].train(step)

    train_ranks(twin.store, work, make=hot_run)
    replay(twin.reference, trainers)
    assert trainers[1].kinds == [True] * 3


def test_rank_without_any_chunk_is_named_at_all_ranks(twin):
    def work(rank, run):
        with pytest.raises(InvalidArgumentError, match=r"a chunk from every rank.*\[1\]"):
            next(run.steps([] if rank else ids(np.arange(40))))

    train_ranks(twin.store, work, make=hot_run)

    def none(rank, run):
        assert not [*run.steps([])]

    train_ranks(twin.store, none, make=hot_run)


def test_replicas_that_have_parted_are_found_out(twin):
    """Another t, or another rate, was compared by nobody."""
    meeting, trained = Meeting(2), {"adam": ([3], ones(1, 5))}
    replicas = [Replica(twin.store, HotSet({"adam": np.arange(9)})) for _ in range(2)]
    for rank, replica in enumerate(replicas):
        replica.pull()
        if rank == 0:
            twin.store.table("adam").learning_rate = twin.reference.table("adam").learning_rate = 2

    def both(**options):
        def of_rank(rank):
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
def test_ranks_with_other_hot_sets_are_told_at_once(twin, other):
    """It was found out at the first key that one of them had not, after updates that others did."""

    def make(store, rank, **options):
        keys = np.arange(20 + 20 * rank * (other == "keys"))
        hot_set = HotSet({"adam": keys}, version=1 + rank * (other == "version"))
        return HotColdRun(store, hot_set, {"id": "adam"}, batch_size=20, rank=rank, **options)

    def work(rank, run):
        with pytest.raises(InvalidArgumentError, match=r"the same hot set.*\[1\]"):
            next(run.steps(ids(np.arange(80) % 20)))

    train_ranks(twin.store, work, make=make)
    assert twin.store.table("adam").t == 0
