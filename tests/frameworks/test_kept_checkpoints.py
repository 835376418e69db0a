"""What loops did, and the files of checkpoints that are replaced, protected, or gone."""

import json
from pathlib import Path
from typing import Any

import pytest

from embstore import CheckpointNotFoundError, CheckpointProtectedError, InvalidArgumentError
from embstore.handles.store import Store
from embstore_training.history import KIND
from tests.frameworks.trainers import batches_of, trainer_in

BATCHES = batches_of(4)


@pytest.fixture(params=["torch", "keras", "jax"])
def trainer(request: pytest.FixtureRequest, embedded: Store) -> Any:
    pytest.importorskip(request.param, reason=f"needs {request.param}")
    return trainer_in(request.param)(embedded)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder."""
    made = tmp_path / "kept"
    made.mkdir()
    return made


def labels(store: Store) -> list[str]:
    return [kept.label for kept in store.checkpoints()]


def files(directory: Path) -> set[str]:
    return {path.name.rpartition("-")[0] for path in directory.iterdir()}


# What loops did


def test_a_loop_says_where_its_time_went_and_writes_its_history(trainer: Any, folder: Path) -> None:
    embeddings = trainer.embeddings
    assert embeddings.loop_stats() is None
    embeddings.history(folder / "run.json")
    trainer.train(BATCHES)
    stats = embeddings.loop_stats()
    assert stats.steps == len(BATCHES)
    assert stats.lookup_s > 0 and stats.send_s > 0 and stats.compute_s > 0
    written = json.loads((folder / "run.json").read_text())
    assert written["kind"] == KIND
    assert written["samples"]["step"][-1] == len(BATCHES)
    assert written["session"]["name"] == "job"
    embeddings.history(None)
    (folder / "run.json").unlink()
    trainer.train(BATCHES[:1])
    assert not list(folder.iterdir())
    assert embeddings.loop_stats().steps == 1


def test_the_history_of_a_loop_that_fails_is_written(trainer: Any, folder: Path) -> None:
    trainer.embeddings.history(folder / "run.json")

    def fail(number: int) -> None:
        if number == 2:
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        trainer.train(BATCHES, after=fail)
    trainer.embeddings.history(None)
    written = json.loads((folder / "run.json").read_text())
    assert 1 <= written["samples"]["step"][-1] <= 2


# Checkpoints


def test_files_of_checkpoints_that_are_gone_are_removed(
    trainer: Any, embedded: Store, folder: Path
) -> None:
    for number in range(5):
        trainer.save(f"step-{number}", folder)
    assert labels(embedded) == ["step-2", "step-3", "step-4"]
    assert files(folder) == {"step-2", "step-3", "step-4"}
    (folder / "mine.txt").touch()
    trainer.load("step-3", folder)
    assert files(folder) - {""} == {"step-2", "step-3"}
    assert (folder / "mine.txt").exists()


def test_best_and_last_are_kept_beside_each_other(
    trainer: Any, embedded: Store, folder: Path
) -> None:
    for epoch, loss in enumerate([0.5, 0.3, 0.6, 0.7, 0.8, 0.9]):
        trainer.save(f"last/{epoch}", folder)
        if loss in (0.5, 0.3):
            trainer.save(f"best/{epoch}", folder)
    assert labels(embedded) == ["best/0", "best/1", "last/3", "last/4", "last/5"]
    trainer.load("best/1", folder)


def test_a_label_is_replaced_and_protected(trainer: Any, embedded: Store, folder: Path) -> None:
    save = trainer.embeddings.save
    trainer.train(BATCHES[:1])
    save("best", directory=folder, replace=True, protect=True, **trainer.parts)
    trainer.train(BATCHES[1:2])
    trainer.save("other", folder)
    wanted = trainer.state()
    save("best", directory=folder, replace=True, protect=True, **trainer.parts)
    assert labels(embedded) == ["other", "best"]
    assert [kept.protected for kept in embedded.checkpoints()] == [False, True]
    assert files(folder) == {"other", "best"}
    with pytest.raises(CheckpointProtectedError):
        trainer.load("other", folder)
    trainer.train(BATCHES[2:])
    assert trainer.load("best", folder) == 2
    assert trainer.state() == wanted


def test_a_trainer_that_is_killed_while_it_replaces_keeps_one(
    trainer: Any, embedded: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = trainer.embeddings.save
    trainer.save("best", folder)
    trainer.train(BATCHES[:1])
    wanted = trainer.state()
    make, made = embedded.checkpoint, []

    def checkpoint(label: str, *rest: Any) -> Any:
        if made:
            raise KeyboardInterrupt
        made.append(label)
        return make(label, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(embedded, "checkpoint", checkpoint)
        with pytest.raises(KeyboardInterrupt):
            save("best", directory=folder, replace=True, **trainer.parts)
    with pytest.raises(CheckpointNotFoundError, match="kept are: 'best/replacing'"):
        trainer.load("best", folder)
    assert trainer.load("best/replacing", folder) == 1
    assert trainer.state() == wanted
    save("best", directory=folder, replace=True, **trainer.parts)
    assert labels(embedded) == ["best"]
    assert files(folder) == {"best"}


def test_retention_is_no_part(trainer: Any, embedded: Store, folder: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="protect=True"):
        trainer.embeddings.save("one", directory=folder, retention="protected")
    assert labels(embedded) == []


def test_what_a_checkpoint_names_elsewhere_is_left(
    trainer: Any, embedded: Store, folder: Path
) -> None:
    own, folder = folder, folder.parent
    trainer.save("one", own)
    (name,) = (kept.metadata for kept in embedded.checkpoints())
    ((framework, file),) = name.items()
    outside = folder / f"x{Path(file).suffix}"
    outside.touch()
    embedded.checkpoint("two", {framework: f"../{outside.name}"})
    for number in range(4):
        trainer.save(f"more-{number}", own)
    assert outside.exists() and not (own / file).exists()
