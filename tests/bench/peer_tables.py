"""Other systems in this process, on the CPU: torch's nn.Embedding, and FBGEMM's table-batched
embedding.

A lookup is the forward pass, and an update is the backward pass. torch's backward pass makes the
sparse gradient of the batch, without summing it. A step of Adagrad follows, which sums the
gradients of duplicate keys and keeps one accumulator per weight, because torch has no row-wise
Adagrad. FBGEMM applies exact row-wise Adagrad inside its backward pass; pooling NONE makes every
key a bag of its own.

Lanes with one thread run, too, and count as contenders. The barriers of OpenMP spin: if another
process ran on the cores, two threads sometimes took 13 times as long as one.
"""

from collections.abc import Callable
from typing import Any

import torch

from tests.bench.rounds import Contender, Lane, warm
from tests.bench.scale import Scale
from tests.bench.worker import SkippedError
from tests.bench.workload import Keys, Rows, Workload


class TableLane:
    """One table, by its forward pass and by what follows the backward one, with some threads."""

    def __init__(
        self,
        forward: Callable[..., Any],
        threads: int,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self._forward, self._threads, self._optimizer = forward, threads, optimizer

    def prepare(self, keys: Keys, grads: Rows) -> Any:
        """Return tensors that share the arrays' memory, with no gradient left from before."""
        torch.set_num_threads(self._threads)
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)
            return (torch.from_numpy(keys),), torch.from_numpy(grads)
        offsets = torch.arange(len(keys) + 1, dtype=torch.int64)
        return (torch.from_numpy(keys), offsets), torch.from_numpy(grads)

    def lookup(self, prepared: Any) -> Any:
        return self._forward(*prepared[0])

    def update(self, prepared: Any, looked_up: Any) -> None:
        looked_up.backward(prepared[1])
        if self._optimizer is not None:
            self._optimizer.step()


def start(scale: Scale, peer: str) -> Contender:
    forward = _fbgemm(scale) if peer == "fbgemm" else _torch(scale)
    lanes: dict[str, Lane] = {}
    for name, threads in ((peer, scale.threads), (f"{peer}-1-thread", 1)):
        optimizer = None
        if peer == "torch":
            optimizer = torch.optim.Adagrad(forward.parameters(), lr=0.01)
        lanes[name] = TableLane(forward, threads, optimizer)
    return warm(Contender(Workload(scale), lanes))


def _torch(scale: Scale) -> Any:
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default; said, it does not warn
    embedding = torch.nn.Embedding(scale.rows, scale.dim, sparse=True)
    torch.nn.init.uniform_(embedding.weight, -0.01, 0.01)
    return embedding


def _fbgemm(scale: Scale) -> Any:
    try:
        from fbgemm_gpu import split_table_batched_embeddings_ops_common as common
        from fbgemm_gpu import split_table_batched_embeddings_ops_training as training
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
    except (ImportError, OSError) as exc:  # OSError: a library that the wheel loads is not there
        raise SkippedError(f"not installed: {exc}") from exc
    embedding = training.SplitTableBatchedEmbeddingBagsCodegen(
        [(scale.rows, scale.dim, common.EmbeddingLocation.HOST, training.ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.01,
        eps=1e-8,
        pooling_mode=common.PoolingMode.NONE,
    )
    embedding.init_embedding_weights_uniform(-0.01, 0.01)
    return embedding
