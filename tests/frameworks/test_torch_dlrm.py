"""A DLRM on the demo's data: the losses of the same model with Torch's own tables in memory."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import Adagrad, Adam, Ftrl, RowWiseAdagrad, Sgd  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import Bag, EmbeddingBagCollection  # noqa: E402
from tests.frameworks.dlrm import (  # noqa: E402
    COLUMNS,
    DIM,
    EPSILON,
    RATE,
    assert_as_in_memory,
    batches_in,
    collection_of,
    rows_of,
)


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return features (n, 13), ids by table (n, 1), and labels (n, 1) of each batch."""
    return [
        (
            torch.tensor(x),
            {name: torch.tensor(keys)[:, None] for name, keys in ids.items()},
            torch.tensor(labels)[:, None],
        )
        for x, ids, labels in batches_in(tmp_path_factory.mktemp("criteo"))
    ]


class Dlrm(torch.nn.Module):
    """The dense part: embeddings and dense features meet in dot products."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.bottom = torch.nn.Sequential(torch.nn.Linear(13, DIM), torch.nn.ReLU())
        self._pairs = torch.tril_indices(COLUMNS + 1, COLUMNS + 1, -1)
        self.top = torch.nn.Sequential(
            torch.nn.Linear(DIM + self._pairs.shape[1], 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        )

    def forward(self, x: Any, embeddings: list[Any]) -> Any:
        bottom = self.bottom(x)
        vectors = torch.stack([bottom, *embeddings], dim=1)
        products = (vectors @ vectors.mT)[:, *self._pairs]
        return self.top(torch.cat([bottom, products], dim=1))


class RowWise(torch.optim.Optimizer):
    """Row-wise Adagrad over dense gradients; a row without one has no square to add."""

    def __init__(self, tables: Any) -> None:
        super().__init__(tables, {})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for table in group["params"]:
                state = self.state[table].setdefault("s", torch.zeros(len(table), 1))
                state += table.grad.square().mean(dim=1, keepdim=True)
                table -= RATE / (state.sqrt() + EPSILON) * table.grad


class LazyAdam(torch.optim.Optimizer):
    """Adam as torch.optim.Adam has it, of the rows that have a gradient. (torch.optim.SparseAdam
    adds epsilon before the correction of the second moment.)"""

    def __init__(self, tables: Any) -> None:
        super().__init__(tables, {})
        self._t = 0

    @torch.no_grad()
    def step(self) -> None:
        self._t += 1
        b1, b2 = 0.9, 0.999
        for group in self.param_groups:
            for table in group["params"]:
                m, v = self.state[table].setdefault("mv", torch.zeros(2, *table.shape))
                g = table.grad
                used = g.ne(0).any(dim=1, keepdim=True)
                m += used * (1 - b1) * (g - m)
                v += used * (1 - b2) * (g * g - v)
                root = (v / (1 - b2**self._t)).sqrt()
                table -= used * RATE / (1 - b1**self._t) * m / (root + EPSILON)


class Proximal(torch.optim.Optimizer):
    """FTRL-proximal with beta 1 (McMahan et al. 2013), of the rows that have a gradient."""

    def __init__(self, tables: Any) -> None:
        super().__init__(tables, {})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for table in group["params"]:
                z, n = self.state[table].setdefault("zn", torch.zeros(2, *table.shape))
                g = table.grad
                used = g.ne(0).any(dim=1, keepdim=True)
                more = n + g * g
                z += used * (g - (more.sqrt() - n.sqrt()) / RATE * table)
                n.copy_(more)
                table.copy_(torch.where(used, -z / ((1 + n.sqrt()) / RATE), table))


OPTIMIZERS: dict[str, Any] = {
    "sgd": (Sgd(RATE), lambda tables: torch.optim.SGD(tables, lr=RATE)),
    "adagrad": (
        Adagrad(RATE, EPSILON),
        lambda tables: torch.optim.Adagrad(tables, lr=RATE, eps=EPSILON),
    ),
    "rowwise_adagrad": (RowWiseAdagrad(RATE, EPSILON), RowWise),
    "adam": (Adam(RATE), LazyAdam),
    "ftrl": (Ftrl(RATE), Proximal),
}


def trained(module: Any, loop: Any, tables_step: Any) -> list[float]:
    """Train a new dense part over embeddings; return the losses."""
    dense = Dlrm()
    optimizer = torch.optim.Adam(dense.parameters(), lr=1e-3)
    losses = []
    for x, ids, labels in loop:
        scores = dense(x, list(module(ids).values()))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tables_step()
        losses.append(float(loss.detach()))
    return losses


class InMemory(torch.nn.Module):
    """The same tables as modules of Torch, beginning with the same rows."""

    def __init__(self, embedding: EmbeddingBagCollection) -> None:
        super().__init__()
        self.bags = {
            name: torch.nn.EmbeddingBag.from_pretrained(
                torch.tensor(rows_of(embedding.store, name)), freeze=False, mode="sum"
            )
            for name in embedding.tables
        }
        self.weights = [bag.weight for bag in self.bags.values()]

    def forward(self, ids: Any) -> dict[str, Any]:
        return {name: bag(ids[name]) for name, bag in self.bags.items()}


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_losses_are_those_of_tables_in_memory(
    embedded: Store, batches: list[Any], kind: str, is_ahead: bool
) -> None:
    optimizer, make = OPTIMIZERS[kind]
    names = batches[0][1]
    embedding = collection_of(EmbeddingBagCollection, Bag, embedded, names, optimizer)
    plain = InMemory(embedding)
    own = make(plain.weights)

    def step() -> None:
        own.step()
        own.zero_grad()

    loop = embedding.ahead(batches, features=lambda batch: batch[1]) if is_ahead else batches
    found, wanted = trained(embedding, loop, embedding.step), trained(plain, batches, step)
    tables = zip(embedding.tables, plain.weights, strict=True)
    in_memory = {name: weight.detach().numpy() for name, weight in tables}
    assert_as_in_memory(embedded, found, wanted, in_memory)
