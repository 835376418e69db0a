"""A checkpoint of store and pytrees under one label: resumed runs are the whole ones."""

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs jax, which embstore does not depend on")

import jax.numpy as jnp  # noqa: E402

from embstore import (  # noqa: E402
    CheckpointExistsError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    TableHeldError,
)
from embstore.handles.store import Store  # noqa: E402
from embstore_server.launch import ServerProcess  # noqa: E402
from tests.frameworks.conftest import opening  # noqa: E402
from tests.frameworks.jax_trainer import BATCHES, Trainer  # noqa: E402
from tests.serving import patient  # noqa: E402
from tests.style.sources import ROOT  # noqa: E402


def nothing(_: int) -> None:
    """Do nothing before or after a step."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """Return what a run that nothing interrupts has come to."""
    path = tmp_path_factory.mktemp("whole")
    with opening(path / "store")() as store:
        trainer = Trainer(store)
        trainer.train(BATCHES, nothing, nothing)
        wanted = trainer.state()
    trainer.state = lambda: wanted  # type: ignore[method-assign]
    return trainer


def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(whole: Trainer, tmp_path: Path) -> None:
    with opening(tmp_path / "cut")() as store:
        first = Trainer(store)

        def after(number: int) -> None:
            if number == 4:
                first.save("half", tmp_path)

        first.train(BATCHES[:7], nothing, after)  # three more than are saved: they are undone
    with opening(tmp_path / "cut")() as store:
        second = Trainer(store)
        place = second.load("half", tmp_path)
        assert place == second.embeddings.last_step == 4
        second.train(itertools.islice(BATCHES, place, None), nothing, nothing)
        assert second.embeddings.last_step == 10
        assert second.state() == whole.state()
        assert first.losses[:4] + second.losses == whole.losses


# Processes that are killed

FLAGS = ("--durability", "commands", "--device", "cpu", "--cache-bytes", "16MiB")


def test_a_loop_goes_on_when_its_server_was_killed(whole: Trainer, tmp_path: Path) -> None:
    socket = tmp_path / "s"

    def restart(number: int) -> None:
        if number == 4:
            server.kill()
            server.start()

    with (
        ServerProcess(tmp_path / "served", *FLAGS, "--socket", str(socket)) as server,
        patient(f"unix:{socket}") as store,
    ):
        trainer = Trainer(store)
        trainer.train(BATCHES, restart, nothing)
        assert trainer.state() == whole.state()
        assert trainer.losses == whole.losses


class Process(NamedTuple):
    """A trainer in a process of its own."""

    popen: Any

    @classmethod
    def start(cls, address: str, directory: Path) -> "Process":
        command = [sys.executable, "-m", "tests.frameworks.jax_trainer", address, str(directory)]
        pipe = subprocess.PIPE
        return cls(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True))

    def line(self) -> str:
        """Return what it says next."""
        said: str = self.popen.stdout.readline()
        return said.strip()

    def go_on(self) -> None:
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.popen.kill()
        self.close()

    def close(self) -> None:
        self.popen.stdin.close()
        self.popen.stdout.close()
        self.popen.wait()


@pytest.mark.parametrize("kills_server", [False, True])
def test_a_trainer_that_was_killed_resumes_to_the_uninterrupted_digest(
    whole: Trainer, tmp_path: Path, kills_server: bool
) -> None:
    with ServerProcess(tmp_path / "served", *FLAGS) as server:
        process = Process.start(server.address, tmp_path)
        for number in range(1, 6):
            assert process.line() == f"before {number}"
            if number < 5:
                process.go_on()
        process.kill()  # step 4 is done and not saved, step 5 is begun
        if kills_server:
            server.kill()
            server.start()
        with patient(server.address) as store:
            assert [checkpoint.label for checkpoint in store.checkpoints()] == ["step-3"]
            assert store.table("t").t == 4
        process = Process.start(server.address, tmp_path)
        for number in range(4, 11):
            assert process.line() == f"before {number}"
            process.go_on()
        assert process.line() == f"done {whole.state()}"
        process.close()


# What is saved


def test_the_place_is_part_of_it_for_every_store(store: Store, tmp_path: Path) -> None:
    trainer = Trainer(store)
    trainer.train(BATCHES[:2], nothing, nothing)
    trainer.save("two", tmp_path)
    wanted = trainer.state()
    trainer.train(BATCHES[2:5], nothing, nothing)
    assert trainer.embeddings.last_step == 5
    assert trainer.load("two", tmp_path) == 2
    assert trainer.state() == wanted
    with store.session(["t"], name="job") as run:
        assert run.last_step == 2


def test_leaves_come_back_as_what_they_were(embedded: Store, tmp_path: Path) -> None:
    trainer = Trainer(embedded)
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


def test_other_ranks_read_the_file_alone(embedded: Store, tmp_path: Path) -> None:
    trainer = Trainer(embedded)
    trainer.train(BATCHES[:2], nothing, nothing)
    trainer.save("two", tmp_path)
    trainer.train(BATCHES[2:3], nothing, nothing)
    after = trainer.state()
    place, parts = trainer.embeddings.load("two", directory=tmp_path, rank=1, **trainer.parts)
    assert place == 2
    assert trainer.embeddings.store.table("t").digest() == after[0]
    assert parts["optimizer"][2].tolist() == [2, 2]


def test_an_open_session_is_waited_for_or_ended(embedded: Store, tmp_path: Path) -> None:
    trainer = Trainer(embedded)
    trainer.train(BATCHES[:2], nothing, nothing)
    trainer.save("two", tmp_path)
    embedded.sessions.open("job", ["t"])
    embedded.sessions.join("job", 0)
    load = trainer.embeddings.load
    with pytest.raises(TableHeldError):
        load("two", directory=tmp_path, **trainer.parts)
    assert load("two", directory=tmp_path, force=True, **trainer.parts).last_step == 2


# What is wrong


def test_a_label_that_is_taken_leaves_no_file(embedded: Store, tmp_path: Path) -> None:
    trainer = Trainer(embedded)
    trainer.save("a/b", tmp_path)
    files = list(tmp_path.glob("*.npz"))
    assert len(files) == 1
    with pytest.raises(CheckpointExistsError):
        trainer.save("a/b", tmp_path)
    assert list(tmp_path.glob("*.npz")) == files
    trainer.load("a/b", tmp_path)


def test_what_cannot_be_saved_leaves_nothing(embedded: Store, tmp_path: Path) -> None:
    save = Trainer(embedded).embeddings.save
    for part, what in ({"f": object()}, r"dense\['f'\].*object"), ("text", "dense.*str"):
        with pytest.raises(InvalidArgumentError, match=what):
            save("one", directory=tmp_path, dense=part)
    with pytest.raises(FileNotFoundError):
        save("one", directory=tmp_path / "absent", dense={})
    assert not list(tmp_path.glob("*.npz"))
    assert embedded.checkpoints() == []


def test_what_is_wrong_is_found_before_anything_is_restored(
    embedded: Store, tmp_path: Path
) -> None:
    trainer = Trainer(embedded)
    load, parts = trainer.embeddings.load, dict(trainer.parts)
    trainer.save("one", tmp_path)
    embedded.checkpoint("plain")
    trainer.train(BATCHES[:2], nothing, nothing)
    wanted = trainer.state()
    with pytest.raises(CheckpointNotFoundError):
        load("none", directory=tmp_path, **parts)
    with pytest.raises(InvalidArgumentError, match="`save` of jax"):
        load("plain", directory=tmp_path, **parts)
    with pytest.raises(InvalidArgumentError, match="parts"):
        load("one", directory=tmp_path, dense=parts["dense"])
    for dense, what in (
        ({"w": jnp.zeros(5), "b": parts["dense"]["b"]}, r"\['w'\].*\[4\].*\[5\]"),
        ({"w": jnp.zeros(4), "b": jnp.zeros(())}, r"\['b'\].*bfloat16.*float32"),
        ({"v": jnp.zeros(4), "b": parts["dense"]["b"]}, r"\['w'\].*\['v'\]"),
        ({"b": parts["dense"]["b"]}, "2 leaves, found 1"),
    ):
        with pytest.raises(InvalidArgumentError, match=what):
            load("one", directory=tmp_path, **(parts | {"dense": dense}))
    with pytest.raises(FileNotFoundError):
        load("one", directory=tmp_path / "absent", **parts)
    with embedded.session(["t"]), pytest.raises(TableHeldError):
        load("one", directory=tmp_path, **parts)
    assert trainer.state() == wanted
    assert trainer.embeddings.last_step == 2
