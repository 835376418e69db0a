"""The cost of a step of `embstore_client.torch`, beside the same calls by hand.

By hand, a step is a lookup, pooling by Torch's own `embedding_bag`, the backward pass, and a call
of `update` with the gradients of the rows. Through the adapter, a step is a forward pass, a
backward pass, and `step`. A dense model would take the same time in both cases, so the loss is only
a weighted sum of all activations. There are two cases: one id per bag, so that nothing is pooled,
and four ids per bag.

Both ways train one table of a store with all rows cached. They take turns, on the same batches. A
ratio is computed from the medians of one round, and the result is the median of the rounds' ratios.
Torch computes in one thread: with two threads, its barriers would spin on the cores that a server
needs.
"""

import contextlib
import pathlib
import statistics
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
import torch

from embstore.config import RowWiseAdagrad, Uniform
from embstore_client.torch import Bag, EmbeddingBagCollection
from tests.bench.scale import Scale
from tests.bench.serving import Server
from tests.bench.stores import filled, open_store
from tests.bench.turns import in_turns, seconds_of
from tests.bench.workload import Workload

BAG_IDS = (1, 4)
BATCHES = 8


def steps(scale: Scale, folder: pathlib.Path) -> dict[str, Any]:
    """Time steps by the adapter and by hand, by way to the store and ids a bag."""
    torch.set_num_threads(1)
    batches = Workload(scale, BATCHES).batches
    with contextlib.ExitStack() as stack:
        opened = (
            open_store(folder / "embedded", scale.all_cached_bytes),
            Server(folder / "served", scale.all_cached_bytes, transport="shared_memory"),
        )
        for one in opened:
            stack.callback(one.close)
        stores = {"embedded": opened[0], "shared memory": opened[1].store}
        for store in stores.values():
            filled(store, scale.rows, scale.dim)
        return {
            f"{way}, {count} a bag": _beside(Bags(scale, batches, count), store)
            for way, store in stores.items()
            for count in BAG_IDS
        }


class Bags:
    """Batches of bags of some ids each, and what their activations are multiplied by."""

    def __init__(self, scale: Scale, batches: Any, ids: int) -> None:
        self.scale, self.ids, self.count = scale, ids, scale.batch_keys // ids
        whole = [batch[: self.count * ids] for batch in batches]
        self._batches = [torch.from_numpy(batch).reshape(-1, ids) for batch in whole]
        rng = np.random.default_rng(scale.seed)
        weights = rng.standard_normal((self.count, scale.dim), np.float32) * 0.01
        self.weights = torch.from_numpy(weights)

    def batches(self) -> Iterator[Any]:
        """Yield ids (bags, ids), again and again."""
        return cycle(self._batches)


def _beside(bags: Bags, store: Any) -> dict[str, float]:
    calls = {"adapter": _adapter_step(bags, store), "by hand": _hand_step(bags, store)}
    medians: dict[str, list[float]] = {name: [] for name in calls}
    for _, name in in_turns(list(calls), 2 * bags.scale.rounds):
        spent = [seconds_of(calls[name]) for _ in range(1 + bags.scale.round_batches)]
        medians[name].append(statistics.median(spent[1:]))
    ratios = [a / b for a, b in zip(medians["adapter"], medians["by hand"], strict=True)]
    found = {f"{name} ms": 1e3 * statistics.median(of) for name, of in medians.items()}
    return found | {"ratio": statistics.median(ratios)}


def _adapter_step(bags: Bags, store: Any) -> Callable[[], Any]:
    table = Bag(
        "ads",
        dim=bags.scale.dim,
        rows=bags.scale.rows,
        features=["ad"],
        optimizer=RowWiseAdagrad(learning_rate=0.01),
        initializer=Uniform(-0.01, 0.01),
    )
    module, batches = EmbeddingBagCollection(store, [table]), bags.batches()

    def step() -> None:
        (module({"ad": next(batches)})["ad"] * bags.weights).sum().backward()
        module.step()

    return step


def _hand_step(bags: Bags, store: Any) -> Callable[[], Any]:
    table, batches = store.table("ads"), bags.batches()
    places = torch.arange(bags.count * bags.ids)
    offsets = torch.arange(0, len(places) + 1, bags.ids)

    def step() -> None:
        keys = next(batches).reshape(-1).numpy()
        rows = output = torch.from_numpy(table.lookup(keys)).requires_grad_()
        if bags.ids > 1:
            output = torch.nn.functional.embedding_bag(
                places, rows, offsets, mode="sum", include_last_offset=True
            )
        (output * bags.weights).sum().backward()
        table.update(keys, rows.grad.numpy())

    return step
