"""Two ranks with DistributedDataParallel: the mean over ranks, in dense part and store alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import clip_grad_norm_  # noqa: E402
from tests.faults.forks import Forks  # noqa: E402
from tests.frameworks import rank_trainer as program  # noqa: E402
from tests.frameworks.numpy_twin import Twin  # noqa: E402
from tests.serving import Server, patient  # noqa: E402


def trained(
    forks: Forks, address: str, directory: Path, *counts: Any, train: Any = program.train
) -> list[Any]:
    """Have all ranks train, and return what each has written."""
    ranks = [
        forks.start(train, address, directory, rank, *counts) for rank in range(program.WORLD_SIZE)
    ]
    assert [rank.wait() for rank in ranks] == [0] * program.WORLD_SIZE
    return [dict(np.load(directory / f"rank-{n}.npz")) for n in range(program.WORLD_SIZE)]


def share_of(written: Any, number: int, tables: Any) -> dict[str, Any]:
    return {
        name: (written[f"{number} {name} keys"], written[f"{number} {name} rows"])
        for name in tables
    }


def alone(store: Store) -> Any:
    """Train on the batches of all ranks in one process; return the dense weights."""
    embedding, dense = program.embedding_of(store), program.dense_of()
    optimizer = torch.optim.SGD(dense.parameters(), lr=0.1)
    for number in range(program.STEPS):
        shares = [program.batch_of(number, rank) for rank in range(program.WORLD_SIZE)]
        batch = tuple(torch.cat(parts) for parts in zip(*shares, strict=True))
        outputs = embedding(program.features_of(batch))
        optimizer.zero_grad()
        program.loss_of(dense, outputs, batch).backward()
        optimizer.step()
        embedding.step()
    return dense.weight.detach().numpy()


def test_ranks_train_as_one_does(
    forks: Forks, server: Server, embedded: Store, tmp_path: Path
) -> None:
    written = trained(forks, server.address, tmp_path)
    weights = alone(embedded)
    for of_rank in written:
        np.testing.assert_allclose(of_rank["weights"], weights, rtol=1e-5, atol=1e-6)
    with patient(server.address) as store:
        embedding = program.embedding_of(store)
        twin = Twin(embedding)
        for number in range(program.STEPS):
            shares = [share_of(of_rank, number, embedding.tables) for of_rank in written]
            twin.step_of_ranks(shares, gradient_scale=1 / program.WORLD_SIZE)
        twin.assert_same()
        assert [kept.label for kept in store.checkpoints()] == ["end"]
        for name in embedding.tables:
            rows = [s.table(name).lookup(np.arange(program.ROWS)) for s in (store, embedded)]
            np.testing.assert_allclose(*rows, rtol=1e-5, atol=1e-6)


def clipped_alone(store: Store) -> tuple[list[float], Any]:
    """Train on the batches of all ranks in one process; return the norms and the weights."""
    embedding, dense = program.embedding_of(store), program.dense_of()
    optimizer, norms = torch.optim.SGD(dense.parameters(), lr=0.1), []
    for number in range(program.STEPS):
        shares = [program.batch_of(number, rank) for rank in range(program.WORLD_SIZE)]
        batch = tuple(torch.cat(parts) for parts in zip(*shares, strict=True))
        optimizer.zero_grad()
        program.loss_of(dense, embedding(program.features_of(batch)), batch).backward()
        if number % 2:
            norms.append(embedding.grad_norm())
            embedding.step(max_norm=program.MAX_NORM)
        else:
            total = clip_grad_norm_(dense.parameters(), program.MAX_NORM, embedding)
            norms.append(float(total))
            embedding.step()
        optimizer.step()
    return norms, dense.weight.detach().numpy()


def test_ranks_clip_the_mean_of_their_gradients(
    forks: Forks, server: Server, embedded: Store, tmp_path: Path
) -> None:
    written = trained(forks, server.address, tmp_path, train=program.clip)
    norms, weights = clipped_alone(embedded)
    assert min(norms) > program.MAX_NORM
    for of_rank in written:
        np.testing.assert_allclose(of_rank["norms"], norms, rtol=1e-4)
        np.testing.assert_allclose(of_rank["weights"], weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(written[0]["norms"], written[1]["norms"])
    with patient(server.address) as store:
        for name in program.embedding_of(store).tables:
            rows = [s.table(name).lookup(np.arange(program.ROWS)) for s in (store, embedded)]
            np.testing.assert_allclose(*rows, rtol=1e-5, atol=1e-6)


def test_ranks_with_unequal_numbers_of_batches_train_to_the_end(
    forks: Forks, server: Server, embedded: Store, tmp_path: Path
) -> None:
    """In the block of DDP.join(), in which the dense part of the one that has ended answers on."""
    counts = program.UNEVEN
    written = trained(forks, server.address, tmp_path, counts)
    assert (written[0]["weights"] == written[1]["weights"]).all()
    with patient(server.address) as store:
        embedding = program.embedding_of(store)
        twin = Twin(embedding)
        for number in range(max(counts)):
            shares = [
                share_of(written[rank], number, embedding.tables)
                for rank in range(program.WORLD_SIZE)
                if number < counts[rank]
            ]
            twin.step_of_ranks(shares, gradient_scale=1 / program.WORLD_SIZE)
        twin.assert_same()
        assert store.table("a").t == max(counts)
    losses = losses_of_torch(embedded, counts)
    for of_rank, wanted in zip(written, losses, strict=True):
        np.testing.assert_allclose(of_rank["losses"], wanted, rtol=1e-5)


class RowWise(torch.optim.Optimizer):  # type: ignore[misc, unused-ignore]
    """Row-wise Adagrad of modules of Torch."""

    def __init__(self, parameters: Any, rate: float) -> None:
        super().__init__(parameters, {"lr": rate})

    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            squares = self.state[parameter].setdefault("squares", torch.zeros(program.ROWS, 1))
            squares += parameter.grad.square().mean(1, keepdim=True)
            with torch.no_grad():
                parameter -= self.param_groups[0]["lr"] * parameter.grad / (squares.sqrt() + 1e-8)


def losses_of_torch(store: Store, counts: tuple[int, ...]) -> list[list[float]]:
    """Return the losses of each rank where the tables are Torch's: within `join()` a gradient is
    divided by the number of all ranks, also of those that have ended."""
    tables, dense = program.embedding_of(store).tables, program.dense_of()
    own = {
        feature: torch.nn.EmbeddingBag.from_pretrained(
            torch.tensor(store.table(name).lookup(range(program.ROWS))), freeze=False, mode="sum"
        )
        for name, table in tables.items()
        for feature in table.features
    }
    optimizers = [
        torch.optim.SGD(dense.parameters(), lr=0.1),
        RowWise([bag.weight for bag in own.values()], 0.1),
    ]
    losses: list[list[float]] = [[] for _ in counts]
    for number in range(max(counts)):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for rank in [rank for rank, count in enumerate(counts) if number < count]:
            batch = program.batch_of(number, rank)
            given = program.features_of(batch)
            outputs = {name: own[name](ids.reshape(len(ids), -1)) for name, ids in given.items()}
            loss = program.loss_of(dense, outputs, batch)
            losses[rank].append(loss.item())
            (loss / program.WORLD_SIZE).backward()
        for optimizer in optimizers:
            optimizer.step()
    return losses
