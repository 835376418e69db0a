"""A checkpoint of the store and a file of a framework, under one label.

The file is written and synced first, under a name that no other has, and the name goes into the
metadata of the checkpoint. So the checkpoint is what makes both: where it fails, or the trainer is
killed before it, a file is left that nothing names, and the label is free.

    metadata    {name of the framework: name of the file}
"""

import os
from collections.abc import Callable, Collection
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote

from embstore.errors import (
    CapacityError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    PermissionDeniedError,
)
from embstore.handles.store import Store

_REFUSALS = (CapacityError, CheckpointExistsError, InvalidArgumentError, PermissionDeniedError)
"""After which there is no such checkpoint; after others there may be one, and it needs its file."""


class KeptFile(NamedTuple):
    """What a framework's files are called, in the metadata of checkpoints and on the disk."""

    framework: str
    suffix: str

    def save(
        self,
        store: Store,
        label: str,
        write: Callable[[BinaryIO], Any],
        *,
        directory: str | os.PathLike[str],
    ) -> None:
        """Have `write` write a new file, and make a checkpoint that names it.

        Raises
        ------
        What `write` and `Store.checkpoint` raise; then nothing is kept, and the label can be used.
        """
        path = Path(directory, f"{quote(label, safe='')}-{token_hex(8)}{self.suffix}")
        try:
            with path.open("x+b") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            _sync_directory(path.parent)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        try:
            store.checkpoint(label, {self.framework: path.name})
        except _REFUSALS:
            path.unlink()
            raise

    def find(self, store: Store, label: str, *, directory: str | os.PathLike[str]) -> Path:
        """Return where the file of a checkpoint is.

        Raises
        ------
        CheckpointNotFoundError : the label is not kept.
        InvalidArgumentError : `save` has not made it.
        """
        metadata = {checkpoint.label: checkpoint.metadata for checkpoint in store.checkpoints()}
        if label not in metadata:
            raise CheckpointNotFoundError(f"no checkpoint {label!r} is kept")
        if self.framework not in metadata[label]:
            raise InvalidArgumentError(
                f"checkpoint {label!r}: expected one that `save` of {self.framework} has made"
            )
        return Path(directory, metadata[label][self.framework])


def check_parts(label: str, saved: Collection[str], given: Collection[str]) -> None:
    """Raise InvalidArgumentError, if other parts are to be loaded than were saved."""
    if set(saved) != set(given):
        raise InvalidArgumentError(
            f"checkpoint {label!r}: expected the parts {sorted(saved)}, found {sorted(given)}"
        )


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
