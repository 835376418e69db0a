"""A checkpoint of store and dense part under one label: resumed runs are the whole ones."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import (  # noqa: E402
    CheckpointExistsError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    Sgd,
    TableHeldError,
)
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import Bag, EmbeddingBagCollection  # noqa: E402
from tests.frameworks.conftest import opening  # noqa: E402
from tests.frameworks.torch_trainer import Trainer, batches_of  # noqa: E402

BATCHES = batches_of(10)


def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(tmp_path: Path) -> None:
    with opening(tmp_path / "whole")() as store:
        whole = Trainer(store)
        whole.train(BATCHES)
        wanted = whole.state()
    with opening(tmp_path / "cut")() as store:
        first = Trainer(store)
        first.train(
            BATCHES[:7],  # three more than are saved: they are undone
            lambda place: place == 4 and first.save("half", tmp_path),
        )
    with opening(tmp_path / "cut")() as store:
        second = Trainer(store)
        place = second.embedding.load("half", directory=tmp_path, **second.parts)
        assert place == second.embedding.last_step == 4
        second.train(itertools.islice(BATCHES, place, None))
        assert second.embedding.last_step == 10
        assert second.state() == wanted
        assert first.losses[:4] + second.losses == whole.losses


def test_the_session_of_a_trainer_that_was_killed_can_be_ended(
    embedded: Store, tmp_path: Path
) -> None:
    trainer = Trainer(embedded)
    trainer.train(BATCHES[:2])
    trainer.save("two", tmp_path)
    embedded.sessions.open("job", ["t"])
    embedded.sessions.join("job", 0)
    with pytest.raises(TableHeldError):
        trainer.embedding.load("two", directory=tmp_path, **trainer.parts)
    assert trainer.embedding.load("two", directory=tmp_path, force=True, **trainer.parts) == 2


def test_the_place_is_part_of_it_for_every_store(store: Store, tmp_path: Path) -> None:
    trainer = Trainer(store)
    trainer.train(BATCHES[:2])
    trainer.save("two", tmp_path)
    wanted = trainer.state()
    trainer.train(BATCHES[2:5])
    assert trainer.embedding.last_step == 5
    assert trainer.embedding.load("two", directory=tmp_path, **trainer.parts) == 2
    assert trainer.state() == wanted
    with store.session(["t"], name="job") as run:
        assert run.last_step == 2


def test_a_label_that_is_taken_leaves_no_file(embedded: Store, tmp_path: Path) -> None:
    trainer = Trainer(embedded)
    trainer.save("a/b", tmp_path)
    files = list(tmp_path.glob("*.pt"))
    assert len(files) == 1
    with pytest.raises(CheckpointExistsError):
        trainer.save("a/b", tmp_path)
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
    trainer.save("one", tmp_path)
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


def test_a_state_that_load_would_refuse_is_not_saved(embedded: Store, tmp_path: Path) -> None:
    embedding = EmbeddingBagCollection(
        embedded, [Bag("t", dim=4, rows=9, features=["x"], optimizer=Sgd(0.1))]
    )
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=np.float64(0.1))
    with pytest.raises(InvalidArgumentError, match=r"numpy.*float"):
        embedding.save("kept", directory=tmp_path, optimizer=optimizer)
    assert not list(tmp_path.glob("*.pt")) and not embedded.checkpoints()
    optimizer.param_groups[0]["lr"] = 0.1
    embedding.save("kept", directory=tmp_path, optimizer=optimizer)
    embedding.load("kept", directory=tmp_path, optimizer=optimizer)
