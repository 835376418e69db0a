"""The dense part of a trainer in a file of Torch, beside a checkpoint of the store.

file    {"last_step": place, "states": {name: state_dict()}}
"""

import os
import warnings
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, BinaryIO, NamedTuple

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore_client.frameworks.saving import KeptFile, check_parts

_FILE = KeptFile("torch", ".pt")
_HAS_ROWS = ContextVar("_HAS_ROWS", default=False)
"""Whether the state is saved with a checkpoint, which has the rows."""
_warned: set[str] = set()
"""Tables that `warn_of_rows` has named, once in a process: states are taken often."""


def warn_of_rows(tables: Iterable[str]) -> None:
    """Warn that a state_dict() has no rows of these tables."""
    new = sorted({*tables} - _warned)
    if new and not _HAS_ROWS.get():
        _warned.update(new)
        warnings.warn(
            f"state_dict() has no rows of the tables {', '.join(new)}: they are in the store; keep "
            "both by save(label, ...) of the module, or make a checkpoint of the store too",
            stacklevel=4,
        )


def save(
    store: Store,
    label: str,
    parts: Mapping[str, Any],
    *,
    last_step: int,
    directory: str | os.PathLike[str],
) -> None:
    """Keep store and parts (what has `state_dict()`) under `label`; see `StoreModule.save`."""
    token = _HAS_ROWS.set(True)
    try:
        states = {n: _having(part, n, "state_dict").state_dict() for n, part in parts.items()}
    finally:
        _HAS_ROWS.reset(token)
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
