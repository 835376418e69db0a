"""Schedules of Torch drive the learning rates of tables, as those of its own optimizers."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import Constant, InvalidArgumentError, Sgd  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import Bag, EmbeddingBagCollection, StoreOptimizer  # noqa: E402
from tests.frameworks.numpy_twin import Forward, Twin, kept  # noqa: E402

IDS = torch.tensor([[1, 2, 1], [8, 0, 3]])
schedulers = torch.optim.lr_scheduler

SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda of: schedulers.LambdaLR(of, lambda step: 0.5**step),
    "by table": lambda of: schedulers.LambdaLR(of, [lambda step: 0.5**step, lambda step: 1.0]),
    "warm-up": lambda of: schedulers.LinearLR(of, 0.1, total_iters=3),
    "one cycle": lambda of: schedulers.OneCycleLR(of, 0.3, total_steps=9, cycle_momentum=False),
    "cosine": lambda of: schedulers.CosineAnnealingWarmRestarts(of, 3),
}


def tables(store: Store) -> EmbeddingBagCollection:
    made: dict[str, Any] = {"dim": 2, "rows": 9, "initializer": Constant(1.0)}
    return EmbeddingBagCollection(
        store,
        [
            Bag("a", features=["x"], optimizer=Sgd(0.5), **made),
            Bag("b", features=["y"], optimizer=Sgd(0.25), **made),
        ],
    )


def twin_of() -> tuple[Any, Any]:
    bags = torch.nn.ModuleDict({f: torch.nn.EmbeddingBag(9, 2, mode="sum") for f in "xy"})
    for bag in bags.values():
        torch.nn.init.ones_(bag.weight)
    groups = [
        {"params": bags[feature].parameters(), "lr": rate}
        for feature, rate in (("x", 0.5), ("y", 0.25))
    ]
    return bags, torch.optim.SGD(groups)


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.filterwarnings("error")
def test_rates_and_rows_are_torchs(embedded: Store, schedule: str, is_ahead: bool) -> None:
    module, (twin, of_twin) = tables(embedded), twin_of()
    optimizer = StoreOptimizer(module)
    ours, theirs = (SCHEDULES[schedule](of) for of in (optimizer, of_twin))
    given = {"x": IDS, "y": IDS + 0}
    batches: Any = [given] * 6
    for features in module.ahead(batches, features=lambda f: f) if is_ahead else batches:
        for of, outputs in ((optimizer, module(features)), (of_twin, None)):
            outputs = outputs or {f: bag(IDS) for f, bag in twin.items()}
            of.zero_grad()
            sum(output.square().sum() for output in outputs.values()).backward()
            of.step()
        ours.step()
        theirs.step()
        assert ours.get_last_lr() == theirs.get_last_lr()
    for name, feature in (("a", "x"), ("b", "y")):
        rows = torch.from_numpy(embedded.table(name).lookup(range(9)))
        torch.testing.assert_close(rows, twin[feature].weight.detach())
        assert embedded.table(name).learning_rate == {"a": 0.5, "b": 0.25}[name]


def test_a_schedule_goes_on_with_a_checkpoint(embedded: Store, tmp_path: Any) -> None:
    def trained(steps: int, module: Any, optimizer: Any, scheduler: Any) -> None:
        for _ in range(steps):
            sum(output.sum() for output in module({"x": IDS, "y": IDS}).values()).backward()
            optimizer.step()
            scheduler.step()

    def made() -> tuple[Any, Any, Any]:
        module = tables(embedded)
        optimizer = StoreOptimizer(module)
        return module, optimizer, SCHEDULES["lambda"](optimizer)

    parts = made()
    trained(2, *parts)
    parts[0].save("two", directory=tmp_path, optimizer=parts[1], scheduler=parts[2])
    trained(3, *parts)
    digest = embedded.table("a").digest()
    again = made()
    again[0].load("two", directory=tmp_path, optimizer=again[1], scheduler=again[2])
    trained(3, *again)
    assert embedded.table("a").digest() == digest


def test_rates_that_are_set_by_hand_are_of_the_next_steps(embedded: Store) -> None:
    module = tables(embedded)
    twin, optimizer = Twin(module), StoreOptimizer(module)
    optimizer.param_groups[1]["lr"] = 0.125
    assert [group["name"] for group in optimizer.param_groups] == ["a", "b"]
    outputs = kept(module({"x": IDS, "y": IDS}))
    sum(output.square().sum() for output in outputs.values()).backward()
    done = optimizer.step(on_nonfinite="skip")
    assert done is not None and done.t == {"a": 1, "b": 1}
    ids = IDS.reshape(-1).numpy()
    given = {feature: (ids, [0, 3, 6], None) for feature in "xy"}
    twin.step([Forward(given, outputs)], learning_rate={"b": 0.125})
    twin.assert_same()
    module({"x": IDS, "y": IDS})["x"].sum().backward()
    optimizer.zero_grad()
    assert optimizer.step() is None
    assert not list(copy.deepcopy(module).parameters())


def test_a_closure_computes_the_gradients_and_its_loss_is_returned(embedded: Store) -> None:
    """As by the optimizers of Torch, whose trainers pass one."""
    module = tables(embedded)
    optimizer = StoreOptimizer(module)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum(output.square().sum() for output in module({"x": IDS, "y": IDS}).values())
        loss.backward()
        return loss

    with torch.no_grad():
        assert optimizer.step(closure).item() == 2 * 2 * 2 * 3**2  # features, bags, dim
    assert embedded.table("a").t == embedded.table("b").t == 1


def test_what_is_no_module_of_a_store_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"module of embstore\.torch, found Sequential"):
        StoreOptimizer(torch.nn.Sequential())
