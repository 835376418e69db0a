"""FBGEMM's table-batched embedding on the CPU: exact row-wise Adagrad inside the backward pass.

One table, pooling NONE: every key is a bag of its own, and the forward pass returns the rows.
Update is the backward pass: FBGEMM applies the optimizer there. With one thread too, as
``peer_torch.py``.
"""

from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from tests.bench.rounds import Contender, Lane, warm
from tests.bench.scale import Scale
from tests.bench.workload import Keys, Rows, Workload


class FbgemmLane:
    """One table with its optimizer inside, and a number of threads."""

    def __init__(self, embedding: SplitTableBatchedEmbeddingBagsCodegen, threads: int) -> None:
        self._embedding = embedding
        self._threads = threads

    def prepare(self, keys: Keys, grads: Rows) -> Any:
        torch.set_num_threads(self._threads)
        offsets = torch.arange(len(keys) + 1, dtype=torch.int64)
        return torch.from_numpy(keys), offsets, torch.from_numpy(grads)

    def lookup(self, prepared: Any) -> Any:
        return self._embedding(prepared[0], prepared[1])

    def update(self, prepared: Any, looked_up: Any) -> None:
        looked_up.backward(prepared[2])


def start(scale: Scale, _: str) -> Contender:
    embedding = SplitTableBatchedEmbeddingBagsCodegen(
        [(scale.rows, scale.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.01,
        eps=1e-8,
        pooling_mode=PoolingMode.NONE,
    )
    embedding.init_embedding_weights_uniform(-0.01, 0.01)
    lanes: dict[str, Lane] = {
        "fbgemm": FbgemmLane(embedding, scale.threads),
        "fbgemm-1-thread": FbgemmLane(embedding, 1),
    }
    return warm(Contender(Workload(scale), lanes))
