"""torch on the same GPU, with the whole table in GPU memory: a forward pass, and a step of sparse
Adagrad.

The rows are the footprint of the same batches, numbered in a random order, because torch's table
has no sparse keys. The lookup is `nn.functional.embedding`. The update is the backward pass, which
makes the gradient of the batch, and the optimizer's step, which sums the gradients of repeated keys
and applies the sums. torch's Adagrad keeps one accumulator per weight, because torch has no
row-wise Adagrad. Times are taken from torch's own events, after copies that empty the L2 cache, as
for the store.
"""

import importlib.util
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.bench.gpu.law import Footprint, Zipf
from tests.bench.gpu.machine import Machine
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.step import DIM
from tests.bench.worker import SkippedError

CUSHIONS = 8


def measure(_: Machine, scale: Scale, __: pathlib.Path) -> dict[str, Any]:
    """Return the medians.

    Raises
    ------
    SkippedError : torch is not installed, or reaches no GPU.
    """
    if scale.emulated:
        raise SkippedError("the emulated device is not torch's")
    if importlib.util.find_spec("torch") is None:
        raise SkippedError("torch is not installed")
    import torch

    if not torch.cuda.is_available():
        raise SkippedError("torch reaches no GPU")
    return _Peer(torch, scale).measure()


class _Peer:
    def __init__(self, torch: Any, scale: Scale) -> None:
        self._torch, self._scale = torch, scale
        torch.sparse.check_sparse_tensor_invariants.disable()  # the default; said, it does not warn
        run = Zipf(scale).batches(scale.step_batches, scale.keys)
        footprint = Footprint(run, scale.seed)
        self.rows = footprint.rows
        self._keys = [torch.from_numpy(np.ascontiguousarray(b)).cuda() for b in footprint.batches]
        weights = torch.empty(self.rows, DIM, device="cuda").uniform_(-0.01, 0.01)
        self._embedding = torch.nn.Embedding.from_pretrained(weights, freeze=False, sparse=True)
        self._optimizer = torch.optim.Adagrad(self._embedding.parameters(), lr=0.01)
        self._gradients = torch.randn(scale.keys, DIM, device="cuda") * 0.01
        self._source = torch.empty(scale.cushion_bytes, dtype=torch.uint8, device="cuda")
        self._target = torch.empty_like(self._source)

    def measure(self) -> dict[str, Any]:
        """Return what lookups, updates and both take."""
        functional = self._torch.nn.functional
        weight = self._embedding.weight

        def lookup(number: int) -> None:
            with self._torch.no_grad():
                functional.embedding(self._keys[number], weight)

        def update(number: int) -> None:
            self._optimizer.zero_grad(set_to_none=True)
            looked_up = functional.embedding(self._keys[number], weight, sparse=True)
            parts.append(self._point())
            looked_up.backward(self._gradients)
            self._optimizer.step()

        parts: list[Any] = []
        lookup_ms = self._median_ms(lookup, [])
        return {
            "rows": self.rows,
            "dim": DIM,
            "optimizer": "Adagrad, one accumulator per weight",
            "lookup_ms": lookup_ms,
            "update_ms": self._median_ms(update, parts),
            "both_ms": self._median_ms(update, []),
        }

    def _median_ms(self, work: Callable[[int], None], parts: list[Any]) -> float:
        """Return the median of a call; from the point on that it adds to `parts`, if it does."""
        spent = []
        for number in range(self._scale.warm_ups + self._scale.torch_repeats):
            for _ in range(CUSHIONS):
                self._target.copy_(self._source)
            parts.append(self._point())
            work(number % len(self._keys))
            end = self._point()
            end.synchronize()
            spent.append(parts[-1].elapsed_time(end))
        return float(np.median(spent[self._scale.warm_ups :]))

    def _point(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event
