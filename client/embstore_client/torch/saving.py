"""The dense part of a trainer in a file of Torch, beside a checkpoint of the store.

file    {"last_step": place, "states": {name: state_dict()}}
"""

import os
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore_client.frameworks.saving import KeptFile, check_parts

_FILE = KeptFile("torch", ".pt")


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
    content = {"last_step": last_step, "states": states}
    _FILE.save(store, label, lambda file: _write(content, file), directory=directory)


def _write(content: Mapping[str, Any], file: BinaryIO) -> None:
    """Write what can also be read: `read` takes nothing that may run code.

    Raises
    ------
    InvalidArgumentError : something else is among the states.
    """
    torch.save(content, file)
    file.seek(0)
    found = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    if found:
        raise InvalidArgumentError(
            f"expected states of tensors and Python's own numbers, texts and containers, found "
            f"{', '.join(sorted(found))}: NumPy's numbers become Python's by float() or int()"
        )


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
    path = _FILE.find(store, label, directory=directory)
    found = Saved(**torch.load(path, weights_only=True))
    check_parts(label, found.states, parts)
    for name, part in parts.items():
        _having(part, name, "load_state_dict")
    return found


def _having(part: Any, name: str, method: str) -> Any:
    if not callable(getattr(part, method, None)):
        raise InvalidArgumentError(
            f"expected {name} to have {method}(), found {type(part).__name__}"
        )
    return part
