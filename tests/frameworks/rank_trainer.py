"""One rank of a training with DistributedDataParallel: a process that test_torch_ranks starts.

It writes what its forwards were given, and the gradients that their outputs got, to DIRECTORY.
"""

import os
from contextlib import nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from embstore import RowWiseAdagrad, Uniform
from embstore.handles.store import Store
from embstore_client.torch import Bag, EmbeddingBagCollection, clip_grad_norm_
from tests.frameworks.numpy_twin import Forward, Twin, kept
from tests.serving import patient

WORLD_SIZE, STEPS, SAMPLES, ROWS = 2, 6, 8, 60
UNEVEN = 5, 7
"""Batches of each rank, where they are not equally many."""
Batch = tuple[Any, Any]


def batch_of(number: int, rank: int) -> Batch:
    """Return ids (samples, 3) and labels (samples, 1) of a rank's share of a step."""
    rng = np.random.default_rng([number, rank])
    ids = torch.tensor(rng.zipf(1.3, (SAMPLES, 3)) % ROWS)
    return ids, torch.tensor(rng.integers(0, 2, (SAMPLES, 1)).astype(np.float32))


def embedding_of(store: Store) -> EmbeddingBagCollection:
    initial = {"rows": ROWS, "initializer": Uniform(-1, 1), "optimizer": RowWiseAdagrad(0.1)}
    tables = [
        Bag("a", dim=4, features=["x"], **initial),
        Bag("b", dim=4, features=["y"], **initial),
    ]
    return EmbeddingBagCollection(store, tables)


def features_of(batch: Batch) -> dict[str, Any]:
    ids, _ = batch
    return {"x": ids[:, :2], "y": ids[:, 2]}


def dense_of() -> Any:
    torch.manual_seed(3)
    return torch.nn.Linear(8, 1)


def loss_of(dense: Any, outputs: dict[str, Any], batch: Batch) -> Any:
    logits = dense(torch.cat(list(outputs.values()), dim=1))
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch[1])


MAX_NORM = 0.05
"""Less than all norms are: each step is clipped."""


def clip(reports: Connection, address: str, directory: Path, rank: int) -> None:
    """Train a few steps, of which each rank clips the mean; write the norms and the weights."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    meeting = f"file://{directory / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD_SIZE)
    with patient(address) as store:
        embedding, dense = embedding_of(store), DistributedDataParallel(dense_of())
        optimizer, norms = torch.optim.SGD(dense.parameters(), lr=0.1), []
        batches = [batch_of(number, rank) for number in range(STEPS)]
        loop = {"name": "clipped", "group": dist.group.WORLD}
        for batch in embedding.ahead(batches, features=features_of, **loop):
            loss = loss_of(dense, embedding(features_of(batch)), batch)
            optimizer.zero_grad()
            loss.backward()
            if len(norms) % 2:  # by both ways, which leave each other nothing to do
                norms.append(embedding.grad_norm())
                embedding.step(max_norm=MAX_NORM)
            else:
                norms.append(float(clip_grad_norm_(dense.parameters(), MAX_NORM, embedding)))
                embedding.step()
            optimizer.step()
        np.savez(directory / f"rank-{rank}.npz", norms=norms, weights=dense.module.weight.detach())
    dist.destroy_process_group()


def train(
    reports: Connection,
    address: str,
    directory: Path,
    rank: int,
    counts: tuple[int, ...] = (STEPS,) * WORLD_SIZE,
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    meeting = f"file://{directory / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD_SIZE)
    with patient(address) as store:
        embedding, dense = embedding_of(store), DistributedDataParallel(dense_of())
        parts = {"dense": dense, "optimizer": torch.optim.SGD(dense.parameters(), lr=0.1)}
        twin, losses, shares = Twin(embedding), [], {}
        batches = [batch_of(number, rank) for number in range(counts[rank])]
        loop = {"name": "ranks", "lookahead": 3, "group": dist.group.WORLD}
        with nullcontext() if len({*counts}) == 1 else dense.join():
            for batch in embedding.ahead(batches, features=features_of, **loop):
                outputs = kept(embedding(features_of(batch)))
                loss = loss_of(dense, outputs, batch)
                losses.append(loss.item())
                parts["optimizer"].zero_grad()
                loss.backward()
                parts["optimizer"].step()
                ids = {"x": batch[0][:, :2], "y": batch[0][:, 2:]}
                given = {
                    name: (of.reshape(-1).numpy(), np.arange(len(of) + 1) * of.shape[1], None)
                    for name, of in ids.items()
                }
                for table, (keys, gradients) in twin.share([Forward(given, outputs)]).items():
                    number = embedding.last_step
                    shares[f"{number} {table} keys"] = keys
                    shares[f"{number} {table} rows"] = gradients
                embedding.step()
        embedding.save("end", directory=directory, group=dist.group.WORLD, **parts)
        weights = dense.module.weight.detach().clone()
        with torch.no_grad():
            dense.module.weight.zero_()
        place = embedding.load("end", directory=directory, group=dist.group.WORLD, **parts)
        assert place == max(counts)
        assert dense.module.weight.equal(weights)
        written = directory / f"rank-{rank}"
        np.savez(written, weights=weights.numpy(), losses=losses, **shares)
    dist.destroy_process_group()
