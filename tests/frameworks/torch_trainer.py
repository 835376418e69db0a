"""A model of one table whose runs are resumed, also as a process that is killed again and again."""

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embstore import Adam, Uniform
from embstore.handles.store import Store
from embstore_client import connect
from embstore_client.torch import Bag, EmbeddingBagCollection
from tests.service.faults.served import PATIENCE_S

SAVED_EVERY = 3


def batches_of(count: int) -> list[Any]:
    """Return ids (5, 3) of so many steps."""
    return [torch.tensor(np.random.default_rng(n).zipf(1.3, (5, 3)) % 90) for n in range(count)]


class Trainer:
    """A model, its dense optimizer, and a rate that falls."""

    def __init__(self, store: Store) -> None:
        table = Bag(
            "t", dim=4, rows=90, features=["x"], optimizer=Adam(0.1), initializer=Uniform(-1, 1)
        )
        self.embedding = EmbeddingBagCollection(store, [table])
        torch.manual_seed(2)
        self.dense = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.Adam(self.dense.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.losses: list[float] = []

    @property
    def parts(self) -> dict[str, Any]:
        return {"dense": self.dense, "optimizer": self.optimizer, "schedule": self.schedule}

    def train(self, batches: Any, after: Callable[[int], object] = lambda place: None) -> None:
        """Train on batches; call `after` behind each step, with the place of the session."""
        features = {"name": "job", "features": lambda ids: {"x": ids}}
        for ids in self.embedding.ahead(batches, lookahead=3, **features):
            loss = self.dense(self.embedding({"x": ids})["x"]).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.embedding.step()
            self.schedule.step()
            self.losses.append(float(loss.detach()))
            after(self.embedding.last_step)

    def save(self, label: str, directory: Path) -> None:
        self.embedding.save(label, directory=directory, **self.parts)

    def state(self) -> Any:
        store = self.embedding.store
        dense = [part.detach().numpy().tolist() for part in self.dense.parameters()]
        return store.table("t").digest(), dense, self.schedule.get_last_lr()


def resume(reports: Connection, address: str, directory: str, steps: int) -> None:
    """Go on from the last checkpoint, which there is one of every few steps; report each step, and
    the state in the end."""
    torch.set_num_threads(1)
    place, files = 0, Path(directory)
    with connect(address, timeout_s=PATIENCE_S) as store:
        trainer = Trainer(store)
        labels = [kept.label for kept in store.checkpoints()]
        if labels:
            options = {"directory": files, "force": True}
            place = trainer.embedding.load(labels[-1], **options, **trainer.parts)
        else:
            trainer.save("0", files)

        def after(place: int) -> None:
            if place % SAVED_EVERY == 0:
                trainer.save(str(place), files)
            reports.send(place)

        trainer.train(batches_of(steps)[place:], after)
        reports.send(trainer.state())
