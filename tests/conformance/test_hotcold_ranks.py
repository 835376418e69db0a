"""Several ranks' hot/cold training is one of all their samples, step by step."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError, RankFailedError, SessionExpiredError
from embstore_client.hotcold.run import HotColdRun
from tests.conformance.cases import generator, ones
from tests.conformance.hotcold import (
    TABLES,
    Trainer,
    chunks_of,
    count_commands,
    replay,
    run_of,
    tables_in,
    train_ranks,
)

Open = Callable[..., Any]


@pytest.fixture
def twin(open_twin: Open) -> Iterator[Any]:
    made = tables_in(open_twin())
    yield made
    count_commands(made)


@pytest.mark.parametrize(("ranks", "rate"), [(2, 1), (2, 50), (3, 100)])
def test_ranks_train_as_one_update_of_all(twin: Any, ranks: int, rate: int) -> None:
    """Each has its own samples, not as many as the others, and its own hot and mixed phases."""
    trainers = [Trainer(seed=rank) for rank in range(ranks)]

    def work(rank: int, run: HotColdRun) -> Any:
        for epoch in range(2):
            rng = np.random.default_rng([914, rank, epoch])
            for step in run.steps(chunks_of(rng, 300 + 90 * rank)):
                trainers[rank].train(step)
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
    count_commands(twin)


def test_ranks_must_update_alike(twin: Any) -> None:
    def work(rank: int, run: HotColdRun) -> int:
        refused = 0
        for step in run.steps(chunks_of(np.random.default_rng(915), 200)):
            gradients = {t: ones(len(k), TABLES[t]["dim"]) for t, k in step.keys.items()}
            if step.is_hot:
                with pytest.raises(InvalidArgumentError, match="same options"):
                    step.update(gradients, gradient_scale=0.5 + rank)
                with pytest.raises(InvalidArgumentError, match=r"update.*release"):
                    step.release() if rank else step.update(gradients)
                refused += 1
            step.update(gradients, gradient_scale=0.5)
            if rank == 0:
                share = {t: (step.keys[t], g) for t, g in gradients.items()}
                twin.reference.update_ranks([share, share], gradient_scale=0.5)
        return refused

    assert min(train_ranks(twin.store, work)) > 2
    count_commands(twin)


def test_rank_that_cannot_push_is_named(twin: Any) -> None:
    members: dict[int, str] = {}

    def work(rank: int, run: HotColdRun) -> None:
        members[rank] = run._session.member
        for step in run.steps(chunks_of(np.random.default_rng(916), 300)):
            if not step.is_hot:
                step.release()
                continue
            step.update(step.lookup())
            if rank == 0:
                for member in members.values():
                    twin.store.sessions.close(member)

    def failing(rank: int, run: HotColdRun) -> None:
        expected = (RankFailedError, "rank 0") if rank else (SessionExpiredError, "closed")
        with pytest.raises(expected[0], match=expected[1]):
            work(rank, run)

    with pytest.raises(SessionExpiredError):  # as rank 0 leaves its block, with rows unsent
        train_ranks(twin.store, failing)
    count_commands(twin)


def test_rank_that_leaves_takes_no_update_with_it(twin: Any) -> None:
    """Rank 0 pushes the updates that all ranks have had a part in, and no other."""
    trainers = [Trainer(seed=rank) for rank in range(2)]

    def work(rank: int, run: HotColdRun) -> None:
        for step in run.steps(chunks_of(np.random.default_rng([918, rank]), 400)):
            if rank == 1 and sum(trainers[1].kinds) > 5 and step.is_hot:
                raise RuntimeError("rank 1 has had enough")
            trainers[rank].train(step)

    with pytest.raises((RuntimeError, threading.BrokenBarrierError)):
        train_ranks(twin.store, work)
    replay(twin.reference, trainers, min(len(trainer.steps) for trainer in trainers))
    count_commands(twin)


def test_hook_that_answers_wrong_is_found_out(twin: Any) -> None:
    wrong = [lambda share: [share, share], lambda share: [share], lambda share: [{}, {}]]
    for hook in wrong:
        with (
            pytest.raises(InvalidArgumentError, match="all_gather"),
            run_of(twin.store, name="run", world_size=2, rank=0, all_gather=hook) as run,
        ):
            next(run.steps(chunks_of(generator(917), 100)))
    with pytest.raises(InvalidArgumentError, match="2 ranks"):
        run_of(twin.store, name="run", world_size=2)
    count_commands(twin)
