"""What trainers do beside a plain step, in each framework: losses and rows are those of a table in
NumPy that is trained the same way. `test_torch_models` compares with modules of Torch."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from embstore import Sgd
from embstore.handles.store import Store

ROWS, DIM, RATE, PAD, BATCHES = 40, 4, 0.05, 7, 12


@dataclass(frozen=True)
class Habit:
    accumulate: int = 1
    is_trained: Callable[[int], bool] = lambda step: True
    rate: Callable[[int], float] = lambda step: RATE
    max_norm: float = float("inf")
    padding_idx: int | None = None


HABITS = {
    "warm start": Habit(),
    "padding": Habit(padding_idx=PAD),
    "frozen at first": Habit(is_trained=lambda step: step >= 4),
    "frozen now and then": Habit(is_trained=lambda step: step % 3 > 0),
    "schedule": Habit(rate=lambda step: RATE * 0.8**step),
    "clipping": Habit(max_norm=2.0),
    "accumulation": Habit(accumulate=3),
    "all of it": Habit(2, lambda step: step != 2, lambda step: RATE / (step + 1), 3.0, PAD),
}


@pytest.fixture(params=["torch", "keras", "jax"])
def on(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param, reason=f"needs {request.param}")
    return importlib.import_module(f"tests.frameworks.on_{request.param}").Adapter()


def batches() -> list[NDArray[np.int64]]:
    """Return ids (5, 6), of which some are -1, and some `PAD`."""
    rng = np.random.default_rng(5)
    found = [rng.integers(-1, ROWS, (5, 6)) for _ in range(BATCHES)]
    for ids in found:
        ids[rng.random(ids.shape) < 0.2] = PAD
    return found


def by_numpy(habit: Habit, rows: NDArray[np.float64]) -> list[float]:
    """Train rows in place, and return the loss of each batch: the sum of squares of sums."""
    losses, total = [], np.zeros_like(rows)
    for number, ids in enumerate(batches()):
        step, place = divmod(number, habit.accumulate)
        is_id = (ids >= 0) & (ids != (-1 if habit.padding_idx is None else habit.padding_idx))
        sums = (rows[ids] * is_id[..., None]).sum(1)
        losses.append(float(np.square(sums).sum()))
        if habit.is_trained(step):
            spread = np.broadcast_to(2 * sums[:, None], (*ids.shape, DIM))
            np.add.at(total, ids[is_id], spread[is_id])
        if place == habit.accumulate - 1:
            scale = min(1.0, habit.max_norm / (np.sqrt(np.square(total).sum()) + 1e-6))
            rows -= habit.rate(step) * scale * total
            total[:] = 0
    return losses


def array(rows: Any) -> Any:
    return np.asarray(rows.detach() if hasattr(rows, "detach") else rows)


@pytest.mark.parametrize("is_ahead", [False, True], ids=["plain", "ahead"])
@pytest.mark.parametrize("name", HABITS)
def test_losses_and_rows_are_those_of_a_table_in_memory(
    embedded: Store, on: Any, name: str, is_ahead: bool
) -> None:
    habit = HABITS[name]
    if is_ahead and habit.accumulate > 1 and not hasattr(on, "weighted"):
        pytest.skip("a loop of JAX announces one lookup a batch")
    layer = on.one_table(embedded, optimizer=Sgd(RATE), padding_idx=habit.padding_idx)
    wanted = np.random.default_rng(6).standard_normal((ROWS, DIM)).astype(np.float32)
    embedded.table("t").assign(range(ROWS), wanted)
    wanted = wanted.astype(np.float64)
    loop: Any = [on.ids(ids) for ids in batches()]
    if is_ahead:
        how = {"accumulate": habit.accumulate} if habit.accumulate > 1 else {}
        loop = on.ahead(layer, loop, **how)
    losses = []
    for number, ids in enumerate(loop):
        step, place = divmod(number, habit.accumulate)
        (layer.unfreeze if habit.is_trained(step) else layer.freeze)()
        looked_up = on.call(layer, ids)
        rows = looked_up["ids"] if isinstance(looked_up, dict) else looked_up
        losses.append(float(np.square(array(rows)).sum()))
        on.back_of(layer, ids)
        if place == habit.accumulate - 1:
            scale = min(1.0, habit.max_norm / (layer.grad_norm() + 1e-6))
            layer.step(learning_rate=habit.rate(step), gradient_scale=scale)
    np.testing.assert_allclose(losses, by_numpy(habit, wanted), rtol=1e-4)
    np.testing.assert_allclose(embedded.table("t").lookup(range(ROWS)), wanted, atol=1e-4)
    trained = sum(map(habit.is_trained, range(BATCHES // habit.accumulate)))
    assert embedded.table("t").t == trained
