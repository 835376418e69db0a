"""A checkpoint of store and dense part under one label: resumed runs are the whole ones."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from embstore import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    TableHeldError,
)
from embstore.errors import OutcomeUnknownError
from embstore.handles.store import Store
from embstore_server.setup.launch import ServerProcess
from tests.frameworks.conftest import opening
from tests.frameworks.trainers import STEPS, batches_of, trainer_in
from tests.serving import patient
from tests.style.sources import ROOT

BATCHES = batches_of(STEPS)


@pytest.fixture(scope="module", params=["torch", "keras", "jax"])
def framework(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param, reason=f"needs {request.param}")
    return str(request.param)


@pytest.fixture(scope="module")
def whole(framework: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the state that a run comes to that nothing interrupts, and its losses."""
    with opening(tmp_path_factory.mktemp("whole"))() as store:
        trainer = trainer_in(framework)(store)
        trainer.train(BATCHES)
        return trainer.state(), trainer.losses


@pytest.fixture
def trainer(framework: str, embedded: Store) -> Any:
    return trainer_in(framework)(embedded)


def saved_files(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.is_file()]


def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(
    framework: str, whole: Any, tmp_path: Path
) -> None:
    state, losses = whole
    with opening(tmp_path / "cut")() as store:
        first = trainer_in(framework)(store)
        first.train(
            BATCHES[:7],  # three more than are saved: they are undone
            after=lambda number: number == 4 and first.save("half", tmp_path),
        )
    with opening(tmp_path / "cut")() as store:
        second = trainer_in(framework)(store)
        place = second.load("half", tmp_path)
        assert place == second.embeddings.last_step == 4
        second.train(BATCHES[place:])
        assert second.embeddings.last_step == 10
        assert second.state() == state
        assert first.losses[:4] + second.losses == losses


# Processes that are killed


@pytest.fixture
def server_process(tmp_path: Path) -> Iterator[ServerProcess]:
    flags = ("--durability", "commands", "--device", "cpu", "--cache-bytes", "16MiB")
    socket = str(tmp_path / "s")
    with ServerProcess(tmp_path / "served", *flags, "--socket", socket) as process:
        yield process


def test_a_loop_goes_on_when_its_server_was_killed(
    framework: str, whole: Any, server_process: ServerProcess, tmp_path: Path
) -> None:
    def restart(number: int) -> None:
        if number == 4:
            server_process.kill()
            server_process.start()

    with patient(f"unix:{tmp_path / 's'}") as store:
        trainer = trainer_in(framework)(store)
        trainer.train(BATCHES, restart)
        assert (trainer.state(), trainer.losses) == whole


class Process(NamedTuple):
    """A trainer in a process of its own."""

    popen: Any

    @classmethod
    def start(cls, *arguments: str) -> "Process":
        command = [sys.executable, "-m", "tests.frameworks.trainers", *arguments]
        pipe = subprocess.PIPE
        return cls(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True))

    def line(self) -> str:
        """Return what it says next."""
        said: str = self.popen.stdout.readline()
        return said.strip()

    def go_on(self) -> None:
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def close(self) -> None:
        self.popen.stdin.close()
        self.popen.stdout.close()
        self.popen.wait()


@pytest.mark.parametrize("kills_server", [False, True])
def test_a_trainer_that_was_killed_resumes_to_the_uninterrupted_digest(
    framework: str, whole: Any, server_process: ServerProcess, tmp_path: Path, kills_server: bool
) -> None:
    if framework == "torch":
        pytest.skip("at any moment in test_torch_kills")
    process = Process.start(framework, server_process.address, str(tmp_path))
    for number in range(1, 6):
        assert process.line() == f"before {number}"
        if number < 5:
            process.go_on()
    process.popen.kill()  # step 4 is done and not saved, step 5 is begun
    process.close()
    if kills_server:
        server_process.kill()
        server_process.start()
    with patient(server_process.address) as store:
        labels = [checkpoint.label for checkpoint in store.checkpoints()]
        assert labels == ["step-0", "step-3"]
        assert store.table("t").t == 4
    process = Process.start(framework, server_process.address, str(tmp_path))
    for number in range(4, 11):
        assert process.line() == f"before {number}"
        process.go_on()
    assert process.line() == f"done {whole[0]}"
    process.close()


# What is saved


def test_the_place_is_part_of_it_for_every_store(
    framework: str, store: Store, tmp_path: Path
) -> None:
    trainer = trainer_in(framework)(store)
    trainer.train(BATCHES[:2])
    trainer.save("two", tmp_path)
    wanted = trainer.state()
    trainer.train(BATCHES[2:5])
    assert trainer.embeddings.last_step == 5
    assert trainer.load("two", tmp_path) == 2
    assert trainer.state() == wanted
    with store.session(["t"], name="job") as run:
        assert run.last_step == 2


def test_the_session_of_a_trainer_that_was_killed_can_be_ended(
    trainer: Any, embedded: Store, tmp_path: Path
) -> None:
    trainer.train(BATCHES[:2])
    trainer.save("two", tmp_path)
    embedded.sessions.open("job", ["t"])
    embedded.sessions.join("job", 0)
    with pytest.raises(TableHeldError):
        trainer.load("two", tmp_path)
    assert trainer.load("two", tmp_path, force=True) == 2


def test_a_label_that_is_saved_again_while_a_load_waits_is_not_half_loaded(
    trainer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.train(BATCHES[:2])
    trainer.save("last", tmp_path)
    restore = Store.restore

    def saved_again(store: Store, label: str, **options: Any) -> Any:
        monkeypatch.undo()
        trainer.save(label, tmp_path, replace=True)  # as the trainer does for which load() waits
        return restore(store, label, **options)

    monkeypatch.setattr(Store, "restore", saved_again)
    with pytest.raises(OutcomeUnknownError, match=r"was saved again, .* call load\(\) again"):
        trainer.load("last", tmp_path)
    assert trainer.load("last", tmp_path) == 2


def test_a_label_that_is_taken_leaves_no_file(trainer: Any, tmp_path: Path) -> None:
    trainer.save("a/b", tmp_path)
    files = saved_files(tmp_path)
    assert len(files) == 1
    with pytest.raises(CheckpointExistsError, match=r"save\(\.\.\., replace=True\)"):
        trainer.save("a/b", tmp_path)
    assert saved_files(tmp_path) == files
    trainer.embeddings.save("a/b", directory=tmp_path, replace=True, **trainer.parts)
    trainer.load("a/b", tmp_path)


def test_the_directory_of_files_is_made(trainer: Any, tmp_path: Path) -> None:
    trainer.save("one", tmp_path / "new" / "one")
    trainer.load("one", tmp_path / "new" / "one")
    assert len(saved_files(tmp_path / "new" / "one")) == 1


def test_progress_of_a_trainer_is_kept_in_a_dict(trainer: Any, tmp_path: Path) -> None:
    """A number alone has no place to be loaded to, but in JAX, whose parts are returned."""
    progress = {"epoch": 3, "best": 0.5, "done": False, "seen": [1, 2]}
    kept = dict(progress)
    trainer.embeddings.save("one", directory=tmp_path, progress=progress, **trainer.parts)
    progress |= {"epoch": 5, "more": 1}
    found = trainer.embeddings.load("one", directory=tmp_path, progress=kept, **trainer.parts)
    assert (found.parts["progress"] if hasattr(found, "parts") else kept) == {
        "epoch": 3,
        "best": 0.5,
        "done": False,
        "seen": [1, 2],
    }


@pytest.mark.parametrize("framework", ["torch", "keras"], indirect=True)
def test_a_number_is_kept_as_the_refusal_says(trainer: Any, tmp_path: Path) -> None:
    save, load = trainer.embeddings.save, trainer.embeddings.load
    with pytest.raises(InvalidArgumentError) as refused:
        save("one", directory=tmp_path, epoch=3)
    (part,) = re.findall(r"as epoch=(\{.*?\})", str(refused.value))
    save("one", directory=tmp_path, epoch=ast.literal_eval(part))
    epoch: dict[str, int] = {}
    load("one", directory=tmp_path, epoch=epoch)
    assert epoch == {"step": 3}
    other = next(part for part in trainer.parts.values())
    with pytest.raises(InvalidArgumentError):
        load("one", directory=tmp_path, epoch=other)
    save("two", directory=tmp_path, epoch=other)
    with pytest.raises(InvalidArgumentError):
        load("two", directory=tmp_path, epoch=epoch)


def test_what_cannot_be_saved_leaves_nothing(trainer: Any, embedded: Store, tmp_path: Path) -> None:
    for part, what in trainer.UNSAVEABLE:
        with pytest.raises(Exception, match=what):
            trainer.embeddings.save("one", directory=tmp_path, dense=part)
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        trainer.save("one", tmp_path / "file")
    (tmp_path / "file").unlink()
    assert not saved_files(tmp_path)
    assert embedded.checkpoints() == []


def test_what_is_wrong_is_found_before_anything_is_restored(
    framework: str, trainer: Any, embedded: Store, tmp_path: Path
) -> None:
    load, parts = trainer.embeddings.load, dict(trainer.parts)
    trainer.save("one", tmp_path)
    embedded.checkpoint("plain")
    trainer.train(BATCHES[:2])
    wanted = trainer.state()
    with pytest.raises(CheckpointNotFoundError):
        load("none", directory=tmp_path, **parts)
    with pytest.raises(InvalidArgumentError, match="`save`"):
        load("plain", directory=tmp_path, **parts)
    name, part = next(iter(parts.items()))
    with pytest.raises(InvalidArgumentError, match="parts"):
        load("one", directory=tmp_path, **{name: part})
    for other, what in WRONG.get(framework, lambda parts: [])(parts):
        with pytest.raises(InvalidArgumentError, match=what):
            load("one", directory=tmp_path, **(parts | other))
    with pytest.raises(FileNotFoundError, match="the directory= that save"):
        load("one", directory=tmp_path / "absent", **parts)
    with embedded.session(["t"]):
        for options in ({}, {"wait_s": 0.01}):
            with pytest.raises(TableHeldError):
                load("one", directory=tmp_path, **options, **parts)
    assert trainer.state() == wanted
    assert trainer.embeddings.last_step == 2


def wrong_in_torch(parts: Any) -> Iterator[tuple[Any, str]]:
    torch = pytest.importorskip("torch", reason="needs torch")
    yield {"dense": torch.nn.Linear(5, 1)}, r"weight of shape \(1, 5\), not \(1, 4\)"
    yield {"dense": torch.nn.Sequential(torch.nn.Linear(4, 1))}, "in one of both only"
    optimizer = type(parts["optimizer"])([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    yield {"optimizer": optimizer}, r"groups of \[1\] parameters, not of \["


def wrong_in_keras(parts: Any) -> Iterator[tuple[Any, str]]:
    yield {"optimizer": type(parts["optimizer"])(0.1)}, "build"


def wrong_in_jax(parts: Any) -> Iterator[tuple[Any, str]]:
    bias = parts["dense"]["b"]
    yield {"dense": {"w": np.zeros(5, np.float32), "b": bias}}, r"\['w'\].*\[4\].*\[5\]"
    yield (
        {"dense": {"w": np.zeros(4, np.float32), "b": np.zeros((), np.float32)}},
        r"\['b'\].*bfloat16.*float32",
    )
    yield {"dense": {"v": np.zeros(4, np.float32), "b": bias}}, r"\['w'\].*\['v'\]"
    yield {"dense": {"b": bias}}, "2 leaves, found 1"


WRONG: dict[str, Any] = {
    "torch": wrong_in_torch,
    "keras": wrong_in_keras,
    "jax": wrong_in_jax,
}


# Of one framework


def test_a_state_of_torch_that_load_would_refuse_is_not_saved(
    embedded: Store, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    trainer = trainer_in("torch")(embedded)
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=np.float64(0.1))
    with pytest.raises(InvalidArgumentError, match=r"numpy.*float"):
        trainer.embeddings.save("kept", directory=tmp_path, optimizer=optimizer)
    assert not saved_files(tmp_path) and not embedded.checkpoints()
    optimizer.param_groups[0]["lr"] = 0.1
    trainer.embeddings.save("kept", directory=tmp_path, optimizer=optimizer)
    trainer.embeddings.load("kept", directory=tmp_path, optimizer=optimizer)


def test_variables_of_keras_in_bfloat16_come_back(embedded: Store, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras", reason="needs keras")
    layer, trainer = keras.layers.Dense(2, dtype="bfloat16"), trainer_in("keras")(embedded)
    layer.build((None, 3))
    before = layer.get_weights()
    trainer.embeddings.save("one", directory=tmp_path, layer=layer)
    layer.set_weights([np.zeros_like(weights) for weights in before])
    trainer.embeddings.load("one", directory=tmp_path, layer=layer)
    np.testing.assert_array_equal(layer.get_weights()[0], before[0])
    assert before[0].dtype.name == "bfloat16"


def test_leaves_of_jax_come_back_as_what_they_were(embedded: Store, tmp_path: Path) -> None:
    jax = pytest.importorskip("jax", reason="needs jax")
    trainer, jnp = trainer_in("jax")(embedded), jax.numpy
    tree = {
        "arrays": [jnp.arange(3), jnp.zeros((2, 0)), jnp.asarray(0.5, jnp.bfloat16)],
        "numpy": (np.arange(4.0)[::2], np.float32(0.1), np.array([2**40])),
        "python": {"int": 3, "float": 0.1, "bool": True, "complex": 1j, "none": None},
        "random": (jax.random.key(7), jax.random.key(7, impl="rbg")),
    }
    trainer.embeddings.save("all", directory=tmp_path, tree=tree, empty={})
    found = trainer.embeddings.load("all", directory=tmp_path, tree=tree, empty={})
    assert found.last_step == 0
    assert jax.tree.structure(found.parts) == jax.tree.structure({"tree": tree, "empty": {}})
    for one, other in zip(*map(jax.tree.leaves, (found.parts["tree"], tree)), strict=True):
        assert type(one) is type(other)
        assert np.asarray(one == other).all()
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)


def test_other_ranks_of_jax_read_the_file_alone(embedded: Store, tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="needs jax")
    trainer = trainer_in("jax")(embedded)
    trainer.train(BATCHES[:2])
    trainer.save("two", tmp_path)
    trainer.train(BATCHES[2:3])
    after = trainer.state()
    place, parts = trainer.embeddings.load("two", directory=tmp_path, rank=1, **trainer.parts)
    assert place == 2
    assert trainer.embeddings.store.table("t").digest() == after[0]
    assert parts["optimizer"][2].tolist() == [2, 2]
