"""What a step of `embstore_client.torch` costs beside the same calls by hand.

By hand: look up, pool by Torch's own `embedding_bag`, go backward, give the gradients of the rows
to `update`. Through the adapter: forward, backward, `step`. In place of a dense part, which both
would have, the loss is a weighted sum of all activations. One id a bag, where nothing is pooled,
and four.

Both train one table of a store, all rows cached, by calls of their own on the same batches, and
take turns; a ratio is of the medians of one round, and the median of the rounds is told. Torch
computes in one thread: the barriers of two spin, on the cores that a server needs.
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
from tests.bench.engine import HEADROOM
from tests.bench.scale import Scale
from tests.bench.serving import Server
from tests.bench.stores import create_table, open_store, small_grads, update_all
from tests.bench.turns import in_turns, seconds_of
from tests.bench.workload import Workload

BAG_IDS = (1, 4)
BATCHES = 8
WAYS = ("embedded", "shared memory")


class AdapterContender:
    """Owns a store in process and a server."""

    def __init__(self, scale: Scale) -> None:
        torch.set_num_threads(1)
        self._scale = scale
        self._batches = Workload(scale, BATCHES).batches
        data = pathlib.Path(scale.data_dir)
        cache_bytes = scale.cache_bytes(HEADROOM * scale.rows, scale.dim)
        with contextlib.ExitStack() as opened:
            embedded = open_store(data / "adapter-embedded", cache_bytes)
            opened.callback(embedded.close)
            server = Server(data / "adapter-served", cache_bytes, transport="shared_memory")
            opened.callback(server.close)
            self._stores = dict(zip(WAYS, (embedded, server.store), strict=True))
            for store in self._stores.values():
                table = create_table(store, "ads", scale.rows, scale.dim)
                update_all(table, np.arange(scale.rows), small_grads(scale.dim))
            self._opened = opened.pop_all()

    def steps(self) -> dict[str, Any]:
        """Time steps by the adapter and by hand, by way to the store and ids a bag."""
        return {
            f"{way}, {count} a bag": self._beside(store, count)
            for way, store in self._stores.items()
            for count in BAG_IDS
        }

    def _beside(self, store: Any, bag_ids: int) -> dict[str, float]:
        scale = self._scale
        calls = {
            "adapter": self._adapter_step(store, bag_ids),
            "by hand": self._hand_step(store, bag_ids),
        }
        medians: dict[str, list[float]] = {name: [] for name in calls}
        for _, name in in_turns(list(calls), 2 * scale.rounds):
            spent = [seconds_of(calls[name]) for _ in range(1 + scale.round_batches)]
            medians[name].append(statistics.median(spent[1:]))
        ratios = [a / b for a, b in zip(medians["adapter"], medians["by hand"], strict=True)]
        found = {f"{name} ms": 1e3 * statistics.median(of) for name, of in medians.items()}
        return found | {"ratio": statistics.median(ratios)}

    def _weights(self, bag_ids: int) -> Any:
        """Return what activations are multiplied by: the gradient of each."""
        bags = self._scale.batch_keys // bag_ids
        rng = np.random.default_rng(self._scale.seed)
        return torch.from_numpy(rng.standard_normal((bags, self._scale.dim), np.float32) * 0.01)

    def _adapter_step(self, store: Any, bag_ids: int) -> Callable[[], Any]:
        table = Bag(
            "ads",
            dim=self._scale.dim,
            rows=self._scale.rows,
            features=["ad"],
            optimizer=RowWiseAdagrad(learning_rate=0.01),
            initializer=Uniform(-0.01, 0.01),
        )
        module, weights = EmbeddingBagCollection(store, [table]), self._weights(bag_ids)
        batches = self._tensors(bag_ids)

        def step() -> None:
            (module({"ad": next(batches)})["ad"] * weights).sum().backward()
            module.step()

        return step

    def _hand_step(self, store: Any, bag_ids: int) -> Callable[[], Any]:
        table, weights = store.table("ads"), self._weights(bag_ids)
        batches = self._tensors(bag_ids)
        places = torch.arange(self._scale.batch_keys // bag_ids * bag_ids)
        offsets = torch.arange(0, len(places) + 1, bag_ids)

        def step() -> None:
            keys = next(batches).reshape(-1).numpy()
            rows = torch.from_numpy(table.lookup(keys)).requires_grad_()
            output = rows if bag_ids == 1 else _pooled(places, rows, offsets)
            (output * weights).sum().backward()
            table.update(keys, rows.grad.numpy())

        return step

    def _tensors(self, bag_ids: int) -> Iterator[Any]:
        """Yield ids (bags, bag_ids), again and again."""
        whole = self._scale.batch_keys // bag_ids * bag_ids
        return cycle([torch.from_numpy(b[:whole]).reshape(-1, bag_ids) for b in self._batches])

    def close(self) -> None:
        """End both stores."""
        self._opened.close()


def _pooled(places: Any, rows: Any, offsets: Any) -> Any:
    return torch.nn.functional.embedding_bag(
        places, rows, offsets, mode="sum", include_last_offset=True
    )


start = AdapterContender
"""Both stores written, every row in their caches."""
