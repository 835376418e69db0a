"""GradScaler: dense part and store are skipped together, and the scale leaves no trace."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import InvalidArgumentError, RowWiseAdagrad, Uniform  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import EmbeddingBag  # noqa: E402

ROWS = 30
IDS = torch.tensor([[1, 2], [2, 3], [29, 1]])


def module_of(store: Store, name: str = "t") -> EmbeddingBag:
    options = {"dim": 4, "rows": ROWS, "optimizer": RowWiseAdagrad(0.1), "seed": 1}
    return EmbeddingBag(store, name, initializer=Uniform(-1, 1), **options)


class Trainer:
    """A dense layer over one table, and a scaler."""

    def __init__(self, store: Store, name: str = "t", *, is_scaled: bool = True) -> None:
        self.embedding = module_of(store, name)
        self.table = store.table(name)
        torch.manual_seed(1)
        self.dense = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.dense.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", enabled=is_scaled, growth_interval=2)

    def step(self, factor: float = 1.0, of_rows: float = 1.0) -> Any:
        """Train on one batch; the factors multiply all gradients, and those of the rows."""
        pooled = self.embedding(IDS)
        pooled = pooled * of_rows + (pooled - pooled * of_rows).detach()  # the same value
        loss = self.dense(pooled).square().sum() * factor
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        done = self.embedding.step(self.scaler)
        self.scaler.update()
        return done

    def state(self) -> Any:
        """Return the bits of everything that is trained."""
        rows = self.table.read_rows(np.arange(ROWS))
        return [part.detach().numpy().copy() for part in self.dense.parameters()] + list(rows)


def assert_same(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_scale_leaves_no_trace(store: Store) -> None:
    scaled, plain = Trainer(store, "t"), Trainer(store, "p", is_scaled=False)
    for _ in range(6):
        scaled.step()
        plain.step()
    assert scaled.scaler.get_scale() > 65536
    assert_same(scaled.state(), plain.state())


def test_an_overflow_skips_the_store_with_the_dense_part(store: Store) -> None:
    trainer = Trainer(store)
    trainer.step()
    before, scale = trainer.state(), trainer.scaler.get_scale()
    assert trainer.step(factor=1e38) is None
    assert_same(trainer.state(), before)
    assert trainer.scaler.get_scale() == scale / 2
    assert trainer.table.t == 1
    assert trainer.step().t == {"t": 2}


def test_an_overflow_skips_the_step_of_a_session(store: Store) -> None:
    trainer = Trainer(store)
    factors = [1.0, 1e38, 1.0]
    for factor in trainer.embedding.ahead(factors, features=lambda _: IDS):
        done = trainer.step(factor)
        assert done.skipped == (factor > 1)
    assert trainer.table.t == 2
    assert trainer.embedding.last_step == 3


def test_an_overflow_of_the_store_alone_lowers_the_scale(store: Store) -> None:
    trainer = Trainer(store)
    rows, scale = trainer.table.lookup(np.arange(ROWS)), trainer.scaler.get_scale()
    assert trainer.step(of_rows=1e38).skipped
    np.testing.assert_array_equal(trainer.table.lookup(np.arange(ROWS)), rows)
    assert trainer.scaler.get_scale() == scale / 2
    assert not trainer.step().skipped


def test_a_step_before_that_of_the_scaler_is_refused(embedded: Store) -> None:
    trainer = Trainer(embedded)
    loss = trainer.dense(trainer.embedding(IDS)).sum()
    trainer.scaler.scale(loss).backward()
    with pytest.raises(InvalidArgumentError, match=r"scaler.step\(optimizer\) before"):
        trainer.embedding.step(trainer.scaler)
    trainer.scaler.unscale_(trainer.optimizer)  # as for clipping: it has looked
    assert trainer.embedding.step(trainer.scaler).t == {"t": 1}


def test_a_scale_that_would_leave_a_trace_is_refused(embedded: Store) -> None:
    trainer = Trainer(embedded)
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=3.0)
    with pytest.raises(InvalidArgumentError, match="power of two"):
        trainer.step()


@pytest.mark.parametrize("order", [1, -1])
def test_an_overflow_of_one_module_is_no_verdict_on_another(embedded: Store, order: int) -> None:
    """Whichever of them is asked first."""
    modules = [module_of(embedded, name) for name in "ab"]
    dense = torch.nn.Linear(4, 1)
    optimizer, scaler = torch.optim.SGD(dense.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    values = [module(IDS) for module in modules]
    pooled = values[0] * 1e38 + (values[0] - values[0] * 1e38).detach() + values[1]
    scaler.scale(dense(pooled).square().sum()).backward()
    scaler.step(optimizer)
    done = {module: module.step(scaler) for module in modules[::order]}
    scaler.update()
    assert [done[module].skipped for module in modules] == [True, False]
