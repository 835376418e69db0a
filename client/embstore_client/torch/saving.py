"""A checkpoint of the store and a file of Torch, under one label.

The file is written and synced first, under a name that no other has, and the name goes into the
metadata of the checkpoint. So the checkpoint is what makes both: where it fails, or the trainer is
killed before it, a file is left that nothing names, and the label is free.

    file        {"last_step": place, "states": {name: state_dict()}}
    metadata    {"torch": name of the file}
"""

import os
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple
from urllib.parse import quote

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.errors import (
    CapacityError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    PermissionDeniedError,
)
from embstore.handles.store import Store

_NAME_KEY = "torch"
_REFUSALS = (CapacityError, CheckpointExistsError, InvalidArgumentError, PermissionDeniedError)
"""After which there is no such checkpoint; after others there may be one, and it needs its file."""


def save(
    store: Store,
    label: str,
    parts: Mapping[str, Any],
    *,
    last_step: int,
    directory: str | os.PathLike[str],
) -> None:
    """Keep store and parts (what has `state_dict()`) under `label`; see `StoreModule.save`."""
    states = {name: _having(part, name, "state_dict").state_dict() for name, part in parts.items()}
    path = Path(directory, f"{quote(label, safe='')}-{token_hex(8)}.pt")
    try:
        with path.open("xb") as file:
            torch.save({"last_step": last_step, "states": states}, file)
            file.flush()
            os.fsync(file.fileno())
        _sync_directory(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    try:
        store.checkpoint(label, {_NAME_KEY: path.name})
    except _REFUSALS:
        path.unlink()
        raise


class Saved(NamedTuple):
    """What a file has."""

    last_step: int
    states: dict[str, Any]

    def load(self, parts: Mapping[str, Any]) -> int:
        """Bring the parts to what it has; return the place."""
        for name, part in parts.items():
            part.load_state_dict(self.states[name])
        return self.last_step


def read(
    store: Store, label: str, parts: Mapping[str, Any], *, directory: str | os.PathLike[str]
) -> Saved:
    """Return what the file of a checkpoint has for the parts; changes nothing.

    Raises
    ------
    CheckpointNotFoundError : the label is not kept.
    InvalidArgumentError : `save` has not made it, or with other parts.
    OSError : the file cannot be read.
    """
    kept = {checkpoint.label: checkpoint for checkpoint in store.checkpoints()}
    if label not in kept:
        raise CheckpointNotFoundError(f"no checkpoint {label!r} is kept")
    file_name = kept[label].metadata.get(_NAME_KEY)
    if file_name is None:
        raise InvalidArgumentError(f"checkpoint {label!r}: expected one that `save` has made")
    found = Saved(**torch.load(Path(directory, file_name), weights_only=True))
    if found.states.keys() != parts.keys():
        raise InvalidArgumentError(
            f"checkpoint {label!r}: expected the parts {sorted(found.states)}, found "
            f"{sorted(parts)}"
        )
    for name, part in parts.items():
        _having(part, name, "load_state_dict")
    return found


def _having(part: Any, name: str, method: str) -> Any:
    if not callable(getattr(part, method, None)):
        raise InvalidArgumentError(
            f"expected {name} to have {method}(), found {type(part).__name__}"
        )
    return part


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
