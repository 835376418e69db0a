"""A checkpoint of store and dense part under one label: resumed runs are the whole ones."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import (  # noqa: E402
    Adam,
    CheckpointExistsError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    TableHeldError,
    Uniform,
)
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import Bag, EmbeddingBagCollection  # noqa: E402
from embstore_server.launch import ServerProcess  # noqa: E402
from tests.frameworks.conftest import opening  # noqa: E402
from tests.serving import patient  # noqa: E402

BATCHES = [torch.tensor(np.random.default_rng(n).zipf(1.3, (5, 3)) % 90) for n in range(10)]


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

    def train(self, batches: Any, save: Any = None, at: int = 0) -> None:
        """Train on batches, and call `save` behind a step of the session."""
        features = {"name": "job", "features": lambda ids: {"x": ids}}
        for ids in self.embedding.ahead(batches, lookahead=3, **features):
            loss = self.dense(self.embedding({"x": ids})["x"]).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.embedding.step()
            self.schedule.step()
            self.losses.append(float(loss.detach()))
            if self.embedding.last_step == at:
                save()

    def state(self) -> Any:
        store = self.embedding.store
        dense = [part.detach().numpy().tolist() for part in self.dense.parameters()]
        return store.table("t").digest(), dense, self.schedule.get_last_lr()


def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(tmp_path: Path) -> None:
    with opening(tmp_path / "whole")() as store:
        whole = Trainer(store)
        whole.train(BATCHES)
        wanted = whole.state()
    with opening(tmp_path / "cut")() as store:
        first = Trainer(store)
        first.train(
            BATCHES[:7],  # three more than are saved: they are undone
            lambda: first.embedding.save("half", directory=tmp_path, **first.parts),
            at=4,
        )
    with opening(tmp_path / "cut")() as store:
        second = Trainer(store)
        place = second.embedding.load("half", directory=tmp_path, **second.parts)
        assert place == second.embedding.last_step == 4
        second.train(itertools.islice(BATCHES, place, None))
        assert second.embedding.last_step == 10
        assert second.state() == wanted
        assert first.losses[:4] + second.losses == whole.losses


def test_a_loop_goes_on_when_its_server_was_killed(tmp_path: Path) -> None:
    with opening(tmp_path / "whole")() as store:
        whole = Trainer(store)
        whole.train(BATCHES)
        wanted = whole.state()
    flags = ("--durability", "commands", "--socket", str(tmp_path / "s"), "--device", "cpu")

    def restart() -> None:
        server.kill()
        server.start()

    with (
        ServerProcess(tmp_path / "served", *flags, "--cache-bytes", "16MiB") as server,
        patient(f"unix:{tmp_path / 's'}") as store,
    ):
        trainer = Trainer(store)
        trainer.train(BATCHES, restart, at=4)
        assert trainer.state() == wanted
        assert trainer.losses == whole.losses


def test_the_session_of_a_trainer_that_was_killed_can_be_ended(
    embedded: Store, tmp_path: Path
) -> None:
    trainer = Trainer(embedded)
    trainer.train(BATCHES[:2])
    trainer.embedding.save("two", directory=tmp_path, **trainer.parts)
    embedded.sessions.open("job", ["t"])
    embedded.sessions.join("job", 0)
    with pytest.raises(TableHeldError):
        trainer.embedding.load("two", directory=tmp_path, **trainer.parts)
    embedded.sessions.end("job")
    assert trainer.embedding.load("two", directory=tmp_path, **trainer.parts) == 2


def test_the_place_is_part_of_it_for_every_store(store: Store, tmp_path: Path) -> None:
    trainer = Trainer(store)
    trainer.train(BATCHES[:2])
    trainer.embedding.save("two", directory=tmp_path, **trainer.parts)
    wanted = trainer.state()
    trainer.train(BATCHES[2:5])
    assert trainer.embedding.last_step == 5
    assert trainer.embedding.load("two", directory=tmp_path, **trainer.parts) == 2
    assert trainer.state() == wanted
    with store.session(["t"], name="job") as run:
        assert run.last_step == 2


def test_a_label_that_is_taken_leaves_no_file(embedded: Store, tmp_path: Path) -> None:
    trainer = Trainer(embedded)
    trainer.embedding.save("a/b", directory=tmp_path, **trainer.parts)
    files = list(tmp_path.glob("*.pt"))
    assert len(files) == 1
    with pytest.raises(CheckpointExistsError):
        trainer.embedding.save("a/b", directory=tmp_path, **trainer.parts)
    assert list(tmp_path.glob("*.pt")) == files
    trainer.embedding.load("a/b", directory=tmp_path, **trainer.parts)


def test_what_cannot_be_saved_leaves_nothing(embedded: Store, tmp_path: Path) -> None:
    trainer = Trainer(embedded)

    class Unsaveable:
        def state_dict(self) -> Any:
            return {"a lock": lambda: None}

    with pytest.raises(InvalidArgumentError, match="state_dict"):
        trainer.embedding.save("one", directory=tmp_path, dense=object())
    with pytest.raises(Exception, match="pickle"):
        trainer.embedding.save("one", directory=tmp_path, dense=Unsaveable())
    with pytest.raises(FileNotFoundError):
        trainer.embedding.save("one", directory=tmp_path / "absent", **trainer.parts)
    assert not list(tmp_path.glob("*.pt"))
    assert embedded.checkpoints() == []


def test_gradients_that_were_not_sent_are_no_state_to_save(embedded: Store, tmp_path: Path) -> None:
    trainer = Trainer(embedded)
    trainer.embedding({"x": BATCHES[0]})["x"].sum().backward()
    with pytest.raises(InvalidArgumentError, match=r"step\(\)"):
        trainer.embedding.save("one", directory=tmp_path)


def test_what_is_wrong_is_found_before_anything_is_restored(
    embedded: Store, tmp_path: Path
) -> None:
    trainer = Trainer(embedded)
    load = trainer.embedding.load
    trainer.embedding.save("one", directory=tmp_path, **trainer.parts)
    embedded.checkpoint("plain")
    trainer.train(BATCHES[:2])
    wanted = trainer.state()
    with pytest.raises(CheckpointNotFoundError):
        load("none", directory=tmp_path, **trainer.parts)
    with pytest.raises(InvalidArgumentError, match="`save`"):
        load("plain", directory=tmp_path, **trainer.parts)
    with pytest.raises(InvalidArgumentError, match="parts"):
        load("one", directory=tmp_path, dense=trainer.dense)
    with pytest.raises(FileNotFoundError):
        load("one", directory=tmp_path / "absent", **trainer.parts)
    with embedded.session(["t"]), pytest.raises(TableHeldError):
        load("one", directory=tmp_path, **trainer.parts)
    assert trainer.state() == wanted
    assert trainer.embedding.last_step == 2
