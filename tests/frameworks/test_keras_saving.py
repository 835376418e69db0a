"""A checkpoint of store and model under one label: resumed runs are the whole ones."""

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    TableHeldError,
)
from embstore.handles.store import Store
from embstore_server.launch import ServerProcess
from tests.frameworks.conftest import opening
from tests.frameworks.on_keras import keras
from tests.serving import patient
from tests.style.sources import ROOT

from tests.frameworks.keras_trainer import BATCHES, SAVED, Trainer  # isort: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Return a trainer that was not interrupted."""
    with opening(tmp_path_factory.mktemp("whole"))() as store:
        trainer = Trainer(store)
        trainer.train(BATCHES)
        trainer.wanted = trainer.state()
    return trainer


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    flags = ("--durability", "commands", "--socket", str(tmp_path / "s"), "--device", "cpu")
    with ServerProcess(tmp_path / "served", *flags, "--cache-bytes", "16MiB") as server:
        yield server


def test_a_run_goes_on_behind_a_trainer_and_a_server_that_were_killed(
    whole: Any, process: ServerProcess, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.frameworks.keras_trainer", process.address, tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == -signal.SIGKILL, done.stderr
    process.kill()
    process.start()
    with patient(process.address) as store:
        trainer = Trainer(store)
        options = {"directory": tmp_path, "force": True}  # the killed one's session may be open
        place = trainer.embeddings.load("half", **options, **trainer.parts)
        assert place == trainer.embeddings.last_step == SAVED
        trainer.train(itertools.islice(BATCHES, place, None))
        assert trainer.state() == whole.wanted
        assert trainer.losses == whole.losses[SAVED:]


def test_a_loop_goes_on_when_its_server_was_killed(
    whole: Any, process: ServerProcess, tmp_path: Path
) -> None:
    def restart() -> None:
        process.kill()
        process.start()

    with patient(f"unix:{tmp_path / 's'}") as store:
        trainer = Trainer(store)
        trainer.train(BATCHES, {4: restart})
        assert trainer.state() == whole.wanted
        assert trainer.losses == whole.losses


def test_the_place_is_part_of_it_for_every_store(store: Store, tmp_path: Path) -> None:
    trainer = Trainer(store)
    trainer.train(BATCHES[:2])
    trainer.embeddings.save("two", directory=tmp_path, **trainer.parts)
    wanted = trainer.state()
    trainer.train(BATCHES[2:5])
    assert trainer.embeddings.last_step == 5
    assert trainer.embeddings.load("two", directory=tmp_path, **trainer.parts) == 2
    assert trainer.state() == wanted
    with store.session(["t"], name="job") as run:
        assert run.last_step == 2


def test_variables_of_bfloat16_come_back(embedded: Store, tmp_path: Path) -> None:
    layer, trainer = keras.layers.Dense(2, dtype="bfloat16"), Trainer(embedded)
    layer.build((None, 3))
    before = layer.get_weights()
    trainer.embeddings.save("one", directory=tmp_path, layer=layer)
    layer.set_weights([np.zeros_like(weights) for weights in before])
    trainer.embeddings.load("one", directory=tmp_path, layer=layer)
    np.testing.assert_array_equal(layer.get_weights()[0], before[0])
    assert before[0].dtype.name == "bfloat16"


def test_what_cannot_be_saved_leaves_nothing(embedded: Store, tmp_path: Path) -> None:
    trainer = Trainer(embedded)
    unbuilt = keras.layers.Dense(1)
    for part in (object(), unbuilt):
        with pytest.raises(InvalidArgumentError, match="dense to have variables"):
            trainer.embeddings.save("one", directory=tmp_path, dense=part)
    with pytest.raises(FileNotFoundError):
        trainer.embeddings.save("one", directory=tmp_path / "absent", **trainer.parts)
    trainer.embeddings.save("two", directory=tmp_path, **trainer.parts)
    with pytest.raises(CheckpointExistsError):
        trainer.embeddings.save("two", directory=tmp_path, **trainer.parts)
    assert len(list(tmp_path.glob("*.npz"))) == 1
    assert [checkpoint.label for checkpoint in embedded.checkpoints()] == ["two"]


def test_what_is_wrong_is_found_before_anything_is_restored(
    embedded: Store, tmp_path: Path
) -> None:
    trainer = Trainer(embedded)
    load, parts = trainer.embeddings.load, trainer.parts
    trainer.embeddings.save("one", directory=tmp_path, **parts)
    embedded.checkpoint("plain")
    trainer.train(BATCHES[:2])
    wanted = trainer.state()
    with pytest.raises(CheckpointNotFoundError):
        load("none", directory=tmp_path, **parts)
    with pytest.raises(InvalidArgumentError, match="`save`"):
        load("plain", directory=tmp_path, **parts)
    with pytest.raises(InvalidArgumentError, match="parts"):
        load("one", directory=tmp_path, model=trainer.model)
    unbuilt = keras.optimizers.Adam(0.1)
    with pytest.raises(InvalidArgumentError, match="built"):
        load("one", directory=tmp_path, model=trainer.model, optimizer=unbuilt)
    with pytest.raises(FileNotFoundError):
        load("one", directory=tmp_path / "absent", **parts)
    with embedded.session(["t"]), pytest.raises(TableHeldError):
        load("one", directory=tmp_path, wait_s=0.01, **parts)
    assert trainer.state() == wanted
    assert trainer.embeddings.last_step == 2
