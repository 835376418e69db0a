"""A model of one table in Torch, its dense optimizer, and a rate that falls."""

from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from embstore.handles.store import Store
from embstore_client import connect
from embstore_client.torch import Bag, EmbeddingBagCollection
from tests.frameworks.trainers import LOOP, TABLE, Saving, nothing
from tests.service.faults.served import PATIENCE_S


class Unsaveable:
    def state_dict(self) -> Any:
        return {"a lock": lambda: None}


class Trainer(Saving):
    UNSAVEABLE = ((object(), "state_dict"), (Unsaveable(), "pickle"))

    def __init__(self, store: Store) -> None:
        self.embeddings = EmbeddingBagCollection(store, [Bag("t", **TABLE)])
        torch.manual_seed(2)
        self._dense = torch.nn.Linear(4, 1)
        self._optimizer = torch.optim.Adam(self._dense.parameters(), lr=0.1)
        self._schedule = torch.optim.lr_scheduler.ExponentialLR(self._optimizer, 0.9)
        self.parts = {
            "dense": self._dense,
            "optimizer": self._optimizer,
            "schedule": self._schedule,
        }
        self.losses = []

    def train(
        self,
        batches: Any,
        before: Callable[[int], Any] = nothing,
        after: Callable[[int], Any] = nothing,
    ) -> None:
        for ids in self.embeddings.ahead(map(torch.tensor, batches), **LOOP):
            loss = self._dense(self.embeddings({"x": ids})["x"]).square().mean()
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            before(self.embeddings.last_step + 1)
            self.embeddings.step()
            self._schedule.step()
            self.losses.append(float(loss.detach()))
            after(self.embeddings.last_step)

    def state(self) -> Any:
        digest = self.embeddings.store.table("t").digest()
        dense = [part.detach().numpy().tolist() for part in self._dense.parameters()]
        return digest, dense, self._schedule.get_last_lr()


def resume(reports: Connection, address: str, directory: str, steps: int) -> None:
    """Go on from the last checkpoint; report each step, and the state in the end."""
    torch.set_num_threads(1)
    with connect(address, timeout_s=PATIENCE_S) as store:
        trainer = Trainer(store)
        trainer.resume(Path(directory), after=reports.send, steps=steps, force=True)
        reports.send(trainer.state())
