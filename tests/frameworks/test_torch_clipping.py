"""Clipping by the norm of all gradients: a model is trained as with Torch's own embeddings."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import Adagrad, InvalidArgumentError, Uniform  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import (  # noqa: E402
    Bag,
    EmbeddingBagCollection,
    clip_grad_norm_,
)

ROWS, DIM, STEPS, RATE = 40, 4, 24, 0.3
TABLES = {"a": "sum", "b": "mean"}
MAX_NORM = 0.2


def batches() -> list[Any]:
    rng = np.random.default_rng(5)
    return [
        (
            {name: torch.tensor(rng.zipf(1.3, (16, 3)) % ROWS) for name in TABLES},
            torch.tensor(rng.integers(0, 2, 16), dtype=torch.float32),
        )
        for _ in range(STEPS)
    ]


def features_of(batch: Any) -> dict[str, Any]:
    return {name: (ids.reshape(-1), torch.arange(0, 48, 3)) for name, ids in batch[0].items()}


def collection(store: Store, optimizer: Any = None) -> EmbeddingBagCollection:
    tables = [
        Bag(
            name,
            dim=DIM,
            rows=ROWS,
            mode=mode,  # type: ignore[arg-type]
            features=[name],
            optimizer=optimizer or Adagrad(RATE, epsilon=1e-10),
            initializer=Uniform(-1, 1),
        )
        for name, mode in TABLES.items()
    ]
    return EmbeddingBagCollection(store, tables)


class Model:
    """A dense layer over pooled rows, trained by Sgd; its rows by Torch or by a store."""

    def __init__(self, store: Store) -> None:
        self.embeddings = collection(store)
        torch.manual_seed(2)
        self.dense = torch.nn.Linear(DIM * len(TABLES), 1)
        self.optimizer = torch.optim.SGD(self.dense.parameters(), lr=RATE)
        self.own = {
            name: torch.nn.EmbeddingBag.from_pretrained(
                torch.tensor(store.table(name).lookup(np.arange(ROWS))), freeze=False, mode=mode
            )
            for name, mode in TABLES.items()
        }
        parameters = [of.weight for of in self.own.values()]
        self.own_optimizer = torch.optim.Adagrad(parameters, lr=RATE, eps=1e-10)
        self.parameters = list(self.dense.parameters())

    def loss(self, pooled: dict[str, Any], labels: Any, factor: float = 1.0) -> Any:
        logits = self.dense(torch.cat(list(pooled.values()), dim=1))[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        return loss * factor

    def of_torch(self, batch: Any) -> Any:
        ids, labels = batch
        return self.loss({name: of(ids[name]) for name, of in self.own.items()}, labels)


def trained_by_torch(store: Store, max_norm: float = MAX_NORM) -> tuple[list[float], list[float]]:
    """Return the losses and norms of Torch's own embeddings."""
    model, losses, norms = Model(store), [], []
    for batch in batches():
        loss = model.of_torch(batch)
        model.optimizer.zero_grad()
        model.own_optimizer.zero_grad()
        loss.backward()
        every = [*model.parameters, *(of.weight for of in model.own.values())]
        norms.append(float(torch.nn.utils.clip_grad_norm_(every, max_norm)))
        model.optimizer.step()
        model.own_optimizer.step()
        losses.append(loss.item())
    return losses, norms


def ahead(embeddings: Any) -> Iterator[Any]:
    yield from embeddings.ahead(batches(), features=features_of, lookahead=3)


def plain(embeddings: Any) -> Iterator[Any]:
    yield from batches()


@pytest.mark.parametrize("loop", [plain, ahead])
def test_dense_part_and_rows_are_clipped_as_torch_does(
    embedded: Store, loop: Callable[[Any], Iterator[Any]]
) -> None:
    wanted, wanted_norms = trained_by_torch(embedded)
    model, losses, norms = Model(embedded), [], []
    for batch in loop(model.embeddings):
        loss = model.loss(model.embeddings(features_of(batch)), batch[1])
        model.optimizer.zero_grad()
        loss.backward()
        norms.append(float(clip_grad_norm_(model.parameters, MAX_NORM, model.embeddings)))
        model.optimizer.step()
        model.embeddings.step()
        losses.append(loss.item())
    np.testing.assert_allclose(norms, wanted_norms, rtol=1e-5)
    np.testing.assert_allclose(losses, wanted, rtol=0, atol=1e-6)
    assert sum(norm > MAX_NORM for norm in norms) > STEPS // 2


def left(embeddings: Any, batch: Any, factor: float = 1.0) -> None:
    """Leave gradients of a batch."""
    sum(of.square().sum() for of in embeddings(features_of(batch)).values()).mul(factor).backward()


def test_what_is_clipped_twice_is_clipped_once_and_later_gradients_are_not(
    embedded: Store,
) -> None:
    embeddings, batch = collection(embedded), batches()[0]
    left(embeddings, batch)
    for _ in range(2):
        clip_grad_norm_([], 2.0, embeddings)
        assert embeddings.grad_norm() == pytest.approx(2.0, rel=1e-5)
    left(embeddings, batch)
    assert embeddings.grad_norm() > 5
    clip_grad_norm_([], float("inf"), embeddings)
    assert embeddings.grad_norm() > 5


def test_a_norm_that_is_not_finite(embedded: Store) -> None:
    embeddings, batch = collection(embedded), batches()[0]
    left(embeddings, batch, float("inf"))
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_([], 1.0, embeddings, error_if_nonfinite=True)
    with pytest.raises(InvalidArgumentError, match="expected finite gradients"):
        embeddings.step(max_norm=1.0)
    done = embeddings.step(max_norm=1.0, on_nonfinite="skip")
    assert done is not None and done.skipped


def test_what_cannot_be_clipped_is_named(embedded: Store) -> None:
    dense = torch.nn.Linear(2, 1)
    for wrong in ([], [2.0], [dense]):
        with pytest.raises(InvalidArgumentError, match="modules of a store, found"):
            clip_grad_norm_(dense.parameters(), 1.0, *wrong)
