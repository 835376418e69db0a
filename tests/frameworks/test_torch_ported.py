"""DIN and SASRec train alike on rows of Torch and of a store, with all that a trainer does beside:
clipping by the global norm, a schedule, accumulation, a look at validation data, and a checkpoint
that a later trainer goes on from."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore_client.torch import StoreOptimizer, clip_grad_norm_  # noqa: E402
from tests.frameworks.conftest import opening  # noqa: E402
from tests.frameworks.ported import MODELS, RATE, Model, OfTorch, of_store  # noqa: E402

BATCHES, OF_A_STEP, SAVED_AT, LEFT_AT, LOOKED_EVERY = 15, 2, 6, 9, 4
NORM = 0.3


def schedule_of(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)


class Trainer:
    """A model with tables of Torch; one of a store overwrites what is other there."""

    def __init__(self, model: Model) -> None:
        torch.manual_seed(1)
        self.model, self.batches = model, model.batches(BATCHES)
        self.own = OfTorch(model)
        self.dense = model.dense()
        self.tables, self.of_rows = self.tables_and_optimizer()
        optimizer = torch.optim.Adam(self.dense.parameters(), lr=0.01)
        self.parts = {
            "dense": self.dense,
            "optimizer": optimizer,
            "of_rows": self.of_rows,
            "schedule": schedule_of(optimizer),
            "of_rates": schedule_of(self.of_rows),
        }
        self.losses: list[float] = []
        self.looks: list[float] = []

    def tables_and_optimizer(self) -> tuple[Any, Any]:
        return self.own, torch.optim.Adagrad(self.own.parameters(), lr=RATE)

    def clip(self) -> None:
        parameters = [*self.dense.parameters(), *self.own.parameters()]
        torch.nn.utils.clip_grad_norm_(parameters, NORM)

    def train(self, begin: int, loop: Any, save: Any = lambda: None) -> None:
        for number, batch in enumerate(loop, begin + 1):
            loss = self.dense(self.tables(batch[0]), batch)
            self.losses.append(loss.item())
            (loss / OF_A_STEP).backward()
            if number % OF_A_STEP == 0 or number == BATCHES:
                self.clip()
                for name in ("optimizer", "of_rows"):
                    self.parts[name].step()
                    self.parts[name].zero_grad()
                self.parts["schedule"].step()
                self.parts["of_rates"].step()
                if number % LOOKED_EVERY == 0:
                    self.look()
                if number == SAVED_AT:
                    save()

    def look(self) -> None:
        for module in (self.tables, self.dense):
            module.eval()
        with torch.no_grad():
            batch = self.batches[0]
            self.looks.append(self.dense(self.tables(batch[0]), batch).item())
        for module in (self.tables, self.dense):
            module.train()


class OfTheStore(Trainer):
    def __init__(self, store: Any, model: Model) -> None:
        self.store = store
        super().__init__(model)

    def tables_and_optimizer(self) -> tuple[Any, Any]:
        tables = of_store(self.store, self.model)
        for name, table in self.own.tables.items():
            if not self.store.table(name).t:
                self.store.table(name).assign(range(len(table.weight)), table.weight.detach())
        return tables, StoreOptimizer(tables)

    def clip(self) -> None:
        clip_grad_norm_(self.dense.parameters(), NORM, self.tables)

    def loop(self, begin: int, is_ahead: bool) -> Any:
        left = self.batches[begin:]
        if not is_ahead:
            return left
        how: Any = {"name": "job", "resume": False, "accumulate": OF_A_STEP}
        return self.tables.ahead(left, features=lambda batch: batch[0], **how)


@pytest.mark.parametrize("is_ahead", [False, True], ids=["plain", "ahead"])
@pytest.mark.parametrize("name", MODELS)
def test_losses_are_those_of_torch_also_behind_a_resume(
    tmp_path: Path, name: str, is_ahead: bool
) -> None:
    model = MODELS[name]
    wanted = Trainer(model)
    wanted.train(0, wanted.batches)
    with opening(tmp_path / "store")() as store:
        first = OfTheStore(store, model)
        progress = {"batches": SAVED_AT}
        parts = first.parts | {"progress": progress}
        loop = first.loop(0, is_ahead)
        first.train(
            0,
            islice(loop, LEFT_AT),
            lambda: first.tables.save("half", directory=tmp_path, **parts),
        )
        if is_ahead:
            loop.close()
        first.tables.zero_grad()
    with opening(tmp_path / "store")() as store:
        second, progress = OfTheStore(store, model), {}
        parts = second.parts | {"progress": progress}
        place = second.tables.load("half", directory=tmp_path, **parts)
        assert place == (SAVED_AT // OF_A_STEP if is_ahead else 0)
        begin = progress["batches"]
        second.train(begin, second.loop(begin, is_ahead))
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(first.losses, wanted.losses[:LEFT_AT], **close)
    torch.testing.assert_close(second.losses, wanted.losses[SAVED_AT:], **close)
    torch.testing.assert_close(second.looks, wanted.looks[SAVED_AT // LOOKED_EVERY :], **close)
    assert wanted.losses[-1] != wanted.losses[0]
