"""Stores that are made of backups, and what they have to have."""

import errno
from pathlib import Path
from typing import Any

import pytest

from embstore.storage.backup import restore_from
from embstore.storage.destinations import open_destination
from embstore.storage.files import Files
from embstore.storage.verify import verify
from tests.conformance.backends import UnsyncedFiles
from tests.faults.damage import SEED
from tests.faults.promises import Promise, check_content, content_of
from tests.faults.training import open_store, train


def restored(
    source: Path | str, path: Path, label: str | None = None, store_id: str | None = None
) -> Any:
    """Make a store of a backup."""
    return restore_from(
        open_destination(str(source)), UnsyncedFiles(path), label, store_id, lambda done, of: None
    )


def problems_of(path: Path) -> list[str]:
    """Return what is wrong in a directory."""
    return verify(Files(path), lambda problem: None, lambda done, of: None).problems


def check_restored(path: Path, promise: Promise, **options: Any) -> None:
    """Check that a directory is a sound store of these tables, and goes on as one."""
    assert not problems_of(path)
    with open_store(path, files=UnsyncedFiles(path), **options) as store:
        store.check_integrity()
        found = content_of(store)
        assert (found.command, found.tables) == (promise.command, promise.tables)
        train(store, SEED, 3, label_last=False)
        store.executor.storage.merges.finish()  # type: ignore[attr-defined]
        stirred = content_of(store)
    with open_store(path, read_only=True) as store:
        check_content(store, stirred)


def copy_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no file linked, as where the destination is another file system."""

    def refuse(files: Files, source: Files, name: str, target: str) -> None:
        if not target.startswith("backup/"):  # the store's own second names
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(files, source, name, target)

    link = Files._link
    monkeypatch.setattr(Files, "_link", refuse)
