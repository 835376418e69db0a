"""One model with `torch.nn.EmbeddingBag`, and with a module of a store: the losses are the same.

Padding, clipping, schedules, scalers and weight decay have files of their own.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import Sgd  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import EmbeddingBag  # noqa: E402

ROWS, DIM, STEPS, RATE = 40, 8, 12, 0.3


class Habit(NamedTuple):
    """What a trainer does to a model, in both."""

    accumulate: int = 1
    """Batches of a step."""
    is_trained: Callable[[int], bool] = lambda step: True
    """Whether rows are trained in a step."""


HABITS = {
    "warm start": Habit(),
    "accumulation": Habit(accumulate=3),
    "frozen at first": Habit(is_trained=lambda step: step >= STEPS // 2),
    "frozen now and then": Habit(is_trained=lambda step: step % 3 > 0),
    "both": Habit(accumulate=2, is_trained=lambda step: step % 2 > 0),
}


def batches_of(habit: Habit) -> list[tuple[Any, Any]]:
    torch.manual_seed(11)
    count = STEPS * habit.accumulate
    return [
        (torch.randint(ROWS, (16, 5)), torch.randint(2, (16, 1)).to(torch.float32))
        for _ in range(count)
    ]


def dense_of() -> tuple[Any, Any]:
    torch.manual_seed(12)
    dense = torch.nn.Linear(DIM, 1)
    return dense, torch.optim.SGD(dense.parameters(), lr=RATE)


def trained(
    bag: Any, habit: Habit, loop: Iterable[tuple[Any, Any]], step: Callable[[], object]
) -> list[float]:
    """Train, and return the loss of each batch; `step` applies the gradients of rows."""
    dense, optimizer = dense_of()
    losses = []
    for number, (ids, labels) in enumerate(loop):
        place, of_step = divmod(number, habit.accumulate)
        bag.requires_grad_(habit.is_trained(place))
        logits = dense(bag(ids))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        (loss / habit.accumulate).backward()
        losses.append(loss.item())
        if of_step == habit.accumulate - 1:
            optimizer.step()
            optimizer.zero_grad()
            step()
    return losses


def torchs(habit: Habit, weights: Any) -> tuple[list[float], Any]:
    bag = torch.nn.EmbeddingBag.from_pretrained(weights.clone(), freeze=False)
    optimizer = torch.optim.SGD(bag.parameters(), lr=RATE)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return trained(bag, habit, batches_of(habit), step), bag.weight.detach()


@pytest.mark.parametrize("is_ahead", [False, True], ids=["plain", "ahead"])
@pytest.mark.parametrize("name", HABITS)
def test_losses_and_rows_are_those_of_torch(store: Store, name: str, is_ahead: bool) -> None:
    habit = HABITS[name]
    torch.manual_seed(13)
    weights = torch.randn(ROWS, DIM)
    losses, rows = torchs(habit, weights)
    bag = EmbeddingBag.from_pretrained(store, "t", weights, freeze=False, optimizer=Sgd(RATE))
    loop: Any = batches_of(habit)
    if is_ahead:
        how: Any = {"features": lambda batch: batch[0], "accumulate": habit.accumulate}
        loop = bag.ahead(loop, **how)
    found = trained(bag, habit, loop, bag.step)
    torch.testing.assert_close(found, losses, rtol=1e-5, atol=1e-6)
    there = torch.from_numpy(store.table("t").lookup(range(ROWS)))
    torch.testing.assert_close(there, rows, rtol=1e-5, atol=1e-6)
    assert losses[-1] < losses[0]
    assert store.table("t").t == sum(map(habit.is_trained, range(STEPS)))
