"""Weight decay as Torch's optimizers have it, where each batch names every row.

Torch's decay also what no batch names; a store leaves that alone.
"""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import Adagrad, Adam, RowWiseAdagrad, Sgd, Uniform  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import Embedding  # noqa: E402

ROWS, DIM, STEPS = 40, 6, 60
RATE, DECAY, EPSILON = 0.05, 0.1, 1e-8


class Decoupled:
    """Before an optimizer of Torch: rows decay as those of AdamW, for which it has no option."""

    param_groups: Any

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for table in group["params"]:
                table.mul_(1 - RATE * DECAY)
        super().step()  # type: ignore[misc]


class DecoupledSgd(Decoupled, torch.optim.SGD):
    pass


class DecoupledAdagrad(Decoupled, torch.optim.Adagrad):
    pass


class RowWise(torch.optim.Optimizer):
    """Row-wise Adagrad over dense gradients, with weight decay of either kind."""

    def __init__(self, tables: Any, *, decoupled: bool) -> None:
        super().__init__(tables, {})
        self._is_decoupled = decoupled

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for table in group["params"]:
                g = table.grad if self._is_decoupled else table.grad + DECAY * table
                s = self.state[table].setdefault("s", torch.zeros(ROWS, 1))
                s += (g * g).mean(dim=1, keepdim=True)
                if self._is_decoupled:
                    table.mul_(1 - RATE * DECAY)
                table -= RATE / (s.sqrt() + EPSILON) * g


OURS: Any = {"weight_decay": DECAY}
DECOUPLED: Any = {"weight_decay": DECAY, "decoupled_weight_decay": True}
OPTIMIZERS: dict[str, Any] = {
    "sgd": (
        Sgd(RATE, **OURS),
        lambda tables: torch.optim.SGD(tables, lr=RATE, weight_decay=DECAY),
    ),
    "sgd-decoupled": (Sgd(RATE, **DECOUPLED), lambda tables: DecoupledSgd(tables, lr=RATE)),
    "adagrad": (
        Adagrad(RATE, EPSILON, **OURS),
        lambda tables: torch.optim.Adagrad(tables, lr=RATE, eps=EPSILON, weight_decay=DECAY),
    ),
    "adagrad-decoupled": (
        Adagrad(RATE, EPSILON, **DECOUPLED),
        lambda tables: DecoupledAdagrad(tables, lr=RATE, eps=EPSILON),
    ),
    "rowwise_adagrad": (
        RowWiseAdagrad(RATE, EPSILON, **OURS),
        lambda tables: RowWise(tables, decoupled=False),
    ),
    "rowwise_adagrad-decoupled": (
        RowWiseAdagrad(RATE, EPSILON, **DECOUPLED),
        lambda tables: RowWise(tables, decoupled=True),
    ),
    "adam": (
        Adam(RATE, **OURS),
        lambda tables: torch.optim.Adam(tables, lr=RATE, weight_decay=DECAY),
    ),
    "adamw": (
        Adam(RATE, **DECOUPLED),
        lambda tables: torch.optim.AdamW(tables, lr=RATE, weight_decay=DECAY),
    ),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_losses_and_rows_are_those_of_torch(embedded: Store, kind: str) -> None:
    optimizer, make = OPTIMIZERS[kind]
    initial = Uniform(-1, 1)
    ours = Embedding(embedded, "t", dim=DIM, rows=ROWS, optimizer=optimizer, initializer=initial)
    rows = embedded.table("t").lookup(np.arange(ROWS))
    plain = torch.nn.Embedding.from_pretrained(torch.tensor(rows), freeze=False)
    own = make(plain.parameters())
    generator = torch.Generator().manual_seed(3)
    target = torch.randn(ROWS, DIM, generator=generator)
    losses = []
    for _ in range(STEPS):
        repeated = torch.randint(ROWS, (ROWS,), generator=generator)
        ids = torch.cat([torch.randperm(ROWS, generator=generator), repeated])
        for module in (ours, plain):
            loss = ((module(ids) - target[ids]) ** 2).sum()
            loss.backward()
            losses.append(loss.item())
        ours.step()
        own.step()
        own.zero_grad()
    np.testing.assert_allclose(losses[::2], losses[1::2], rtol=2e-5)
    found, wanted = embedded.table("t").lookup(np.arange(ROWS)), plain.weight.detach().numpy()
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def test_rows_that_a_batch_does_not_name_stay(embedded: Store) -> None:
    ours = Embedding(
        embedded, "t", dim=DIM, rows=ROWS, optimizer=Adam(RATE, **DECOUPLED),
        initializer=Uniform(-1, 1),
    )  # fmt: skip
    before = embedded.table("t").lookup(np.arange(ROWS))
    ours(torch.arange(10)).sum().backward()
    ours.step()
    after = embedded.table("t").lookup(np.arange(ROWS))
    assert after[10:].tobytes() == before[10:].tobytes()
    assert (after[:10] != before[:10]).all()
