"""GradScaler: dense part and store are skipped together, and the scale leaves no trace."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import InvalidArgumentError, RowWiseAdagrad, Sgd, Uniform  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import EmbeddingBag, StoreOptimizer, clip_grad_norm_  # noqa: E402

ROWS = 30
IDS = torch.tensor([[1, 2], [2, 3], [29, 1]])


def module_of(store: Store, name: str = "t") -> EmbeddingBag:
    options = {"dim": 4, "rows": ROWS, "optimizer": RowWiseAdagrad(0.1), "seed": 1}
    return EmbeddingBag(store, name, initializer=Uniform(-1, 1), **options, mode="sum")


class Trainer:
    """A dense layer over one table, and a scaler."""

    def __init__(self, store: Store, name: str = "t", *, is_scaled: bool = True) -> None:
        self.embedding = self.embedding_of(store, name)
        self.table = store.table(name)
        torch.manual_seed(1)
        self.dense = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.dense.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", enabled=is_scaled, growth_interval=2)

    def embedding_of(self, store: Store, name: str) -> EmbeddingBag:
        return module_of(store, name)

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


class TorchAlone(Trainer):
    """The same with Torch's own embedding, all of it under one scaler, and clipped."""

    def embedding_of(self, store: Store, name: str) -> EmbeddingBag:
        options = {"dim": 4, "rows": ROWS, "optimizer": Sgd(0.02), "seed": 1}
        return EmbeddingBag(store, name, initializer=Uniform(-1, 1), **options, mode="sum")

    def __init__(self, store: Store, name: str = "t", max_norm: float = 1.0) -> None:
        super().__init__(store, name)
        rows = torch.tensor(self.table.lookup(np.arange(ROWS)))
        self.own = torch.nn.EmbeddingBag.from_pretrained(rows, freeze=False, mode="sum")
        self.parameters = [*self.dense.parameters(), self.own.weight]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.02)
        self.max_norm = max_norm

    def loss(self, pooled: Any, factor: float, of_rows: float) -> Any:
        pooled = pooled * of_rows + (pooled - pooled * of_rows).detach()
        return self.dense(pooled).square().sum() * factor

    def step(self, factor: float = 1.0, of_rows: float = 1.0) -> Any:
        loss = self.loss(self.own(IDS), factor, of_rows)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item(), self.scaler.get_scale()


class Clipped(TorchAlone):
    """The same with rows of a store."""

    def __init__(self, store: Store, name: str = "t", max_norm: float = 1.0) -> None:
        super().__init__(store, name, max_norm)
        self.parameters = list(self.dense.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.02)

    def step(self, factor: float = 1.0, of_rows: float = 1.0) -> Any:
        loss = self.loss(self.embedding(IDS), factor, of_rows)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        clip_grad_norm_(self.parameters, self.max_norm, self.embedding, scaler=self.scaler)
        self.scaler.step(self.optimizer)
        self.embedding.step(self.scaler)
        self.scaler.update()
        return loss.item(), self.scaler.get_scale()


OVERFLOWS = [{}, {}, {"factor": 1e38}, {}, {"of_rows": 1e38}, {}, {}, {"factor": 1e38}, {}, {}]


@pytest.mark.parametrize("max_norm", [0.5, float("inf")])
def test_losses_and_scales_are_those_of_torch_alone(embedded: Store, max_norm: float) -> None:
    """Also where only rows overflow: then nothing is trained."""
    found, wanted = Clipped(embedded, "t", max_norm), TorchAlone(embedded, "own", max_norm)
    steps = [(found.step(**how), wanted.step(**how)) for how in OVERFLOWS]
    for (loss, scale), (loss_of_torch, scale_of_torch) in steps:
        assert loss == pytest.approx(loss_of_torch, rel=1e-6)
        assert scale == scale_of_torch
    assert found.table.t == sum(not how for how in OVERFLOWS)


def test_clipping_before_the_scaler_has_unscaled_is_refused(embedded: Store) -> None:
    trainer = Clipped(embedded)
    trainer.scaler.scale(trainer.loss(trainer.embedding(IDS), 1.0, 1.0)).backward()
    with pytest.raises(InvalidArgumentError, match=r"scaler.unscale_\(optimizer\) before"):
        clip_grad_norm_(trainer.parameters, 1.0, trainer.embedding, scaler=trainer.scaler)
    scaled = trainer.embedding.grad_norm()
    assert trainer.embedding.grad_norm(trainer.scaler) == scaled / trainer.scaler.get_scale()
    trainer.scaler.unscale_(trainer.optimizer)
    norm = clip_grad_norm_(trainer.parameters, 1e9, trainer.embedding, scaler=trainer.scaler)
    assert float(norm) < scaled
    clip_grad_norm_([], 1.0, trainer.embedding, scaler=torch.amp.GradScaler(enabled=False))
    assert trainer.embedding.grad_norm() == pytest.approx(1.0, rel=1e-5)


class Apart(TorchAlone):
    """Torch's own embedding with an optimizer of its own, as each optimizer has its verdict."""

    def __init__(self, store: Store, name: str = "t", *, clears_first: bool = True) -> None:
        super().__init__(store, name)
        self.clears_first = clears_first
        self.optimizer = torch.optim.SGD(self.dense.parameters(), lr=0.02)
        self.of_rows = self.optimizer_of_rows()

    def optimizer_of_rows(self) -> Any:
        return torch.optim.SGD(self.own.parameters(), lr=0.02)

    def bags(self, ids: Any) -> Any:
        return self.own(ids)

    def step(self, factor: float = 1.0, of_rows: float = 1.0) -> Any:
        loss = self.loss(self.bags(IDS), factor, of_rows)
        both = (self.optimizer, self.of_rows)
        if self.clears_first:
            for optimizer in both:
                optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        for optimizer in both:
            self.scaler.step(optimizer)
        self.scaler.update()
        if not self.clears_first:
            for optimizer in both:
                optimizer.zero_grad()
        return loss.item(), self.scaler.get_scale()


class OfTheStore(Apart):
    """The same with rows of a store, and a StoreOptimizer."""

    def optimizer_of_rows(self) -> Any:
        return StoreOptimizer(self.embedding)

    def bags(self, ids: Any) -> Any:
        return self.embedding(ids)


@pytest.mark.parametrize("is_ahead", [False, True], ids=["plain", "ahead"])
@pytest.mark.parametrize("clears_first", [True, False], ids=["cleared before", "cleared behind"])
@pytest.mark.filterwarnings("error:.*step .* was looked up")
def test_a_scaler_steps_the_optimizer_of_a_store_as_those_of_torch(
    store: Store, clears_first: bool, is_ahead: bool
) -> None:
    found = OfTheStore(store, "t", clears_first=clears_first)
    wanted = Apart(store, "own", clears_first=clears_first)
    loop: Any = OVERFLOWS
    if is_ahead:
        loop = found.embedding.ahead(OVERFLOWS, features=lambda _: IDS)
    for how in loop:
        (loss, scale), (loss_of_torch, scale_of_torch) = found.step(**how), wanted.step(**how)
        assert loss == pytest.approx(loss_of_torch, rel=1e-6)
        assert scale == scale_of_torch
    rows = torch.from_numpy(found.table.lookup(range(ROWS)))
    torch.testing.assert_close(rows, wanted.own.weight.detach(), rtol=1e-5, atol=1e-6)
    assert found.table.t == sum(not how for how in OVERFLOWS)


def test_the_scale_is_taken_off_once_by_unscale_and_step(embedded: Store) -> None:
    trainer, plain = OfTheStore(embedded, "t"), OfTheStore(embedded, "plain")
    for of, scaler in ((trainer, trainer.scaler), (plain, torch.amp.GradScaler(enabled=False))):
        scaler.scale(of.loss(of.bags(IDS), 1.0, 1.0)).backward()
        scaler.unscale_(of.of_rows)
        scaler.step(of.of_rows)
    assert_same(trainer.table.read_rows([1, 2, 29]), plain.table.read_rows([1, 2, 29]))
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=3.0)
    with pytest.raises(InvalidArgumentError, match="power of two"):
        trainer.step()
    trainer.embedding.zero_grad()
