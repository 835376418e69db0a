"""torch on the CPU: nn.Embedding(sparse=True), and Adagrad over its sparse gradient.

Lookup is the forward pass. Update is backward, which makes the sparse gradient of the batch as it
is, and the optimizer's step, which sums duplicate keys and applies. Its Adagrad keeps one
accumulator per weight: torch has no row-wise one.

A lane with one thread runs beside it and counts as a peer too: the barriers of OpenMP spin, and
where anything else runs on the cores, two threads were seen to take 13 times as long as one.
"""

from typing import Any

import torch

from tests.bench.rounds import Contender, Lane, warm
from tests.bench.scale import Scale
from tests.bench.workload import Keys, Rows, Workload


class TorchLane:
    """One table and its optimizer, with a number of threads."""

    def __init__(self, embedding: torch.nn.Embedding, threads: int) -> None:
        self._threads = threads
        self._embedding = embedding
        self._optimizer = torch.optim.Adagrad(self._embedding.parameters(), lr=0.01)

    def prepare(self, keys: Keys, grads: Rows) -> Any:
        """Return tensors that share the arrays' memory, with no gradient left from before."""
        torch.set_num_threads(self._threads)
        self._optimizer.zero_grad(set_to_none=True)
        return torch.from_numpy(keys), torch.from_numpy(grads)

    def lookup(self, prepared: Any) -> Any:
        return self._embedding(prepared[0])

    def update(self, prepared: Any, looked_up: Any) -> None:
        looked_up.backward(prepared[1])
        self._optimizer.step()


def start(scale: Scale, _: str) -> Contender:
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default; said, it does not warn
    embedding = torch.nn.Embedding(scale.rows, scale.dim, sparse=True)
    torch.nn.init.uniform_(embedding.weight, -0.01, 0.01)
    lanes: dict[str, Lane] = {
        "torch": TorchLane(embedding, scale.threads),
        "torch-1-thread": TorchLane(embedding, 1),
    }
    return warm(Contender(Workload(scale), lanes))
