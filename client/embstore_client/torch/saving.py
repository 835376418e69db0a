"""The dense part of a trainer in a file of Torch, saved with a checkpoint of the store.

file    {"last_step": resume position, "states": {name: state_dict(), or a dict}}
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import torch  # type: ignore[import-not-found, unused-ignore]

from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.saving import (
    KeptFile,
    Saved,
    check_parts,
    filled,
    is_plain,
    wrong_part,
)

_HAS_ROWS = ContextVar("_HAS_ROWS", default=False)
_warned: set[str] = set()
"""Tables that `warn_of_rows` has named. Each is named once per process, because programs read
states often."""


def has_rows() -> bool:
    """Return whether the state that is now being saved or loaded belongs to a checkpoint, which
    contains the rows."""
    return _HAS_ROWS.get()


@contextmanager
def _with_rows() -> Iterator[None]:
    token = _HAS_ROWS.set(True)
    try:
        yield
    finally:
        _HAS_ROWS.reset(token)


def warn_of_rows(tables: Iterable[str]) -> None:
    """Warn that a state_dict() has no rows of these tables, once per table and process."""
    new = sorted({*tables} - _warned)
    if new and not has_rows():
        _warned.update(new)
        warnings.warn(
            f"state_dict() has no rows of the tables {', '.join(new)}: they are in the store; "
            "save both by the module's save(label, ...), or make a checkpoint of the store too",
            stacklevel=4,
        )


def _writing(parts: Mapping[str, Any], last_step: int) -> Callable[[BinaryIO], None]:
    """Return a function that writes the states of the parts."""
    with _with_rows():
        states = {n: _having(part, n, "state_dict")() for n, part in parts.items()}
    return partial(_write, {"last_step": last_step, "states": states})


def _write(content: Mapping[str, Any], file: BinaryIO) -> None:
    """Write states, and check that `_reading` accepts them, as it refuses objects that may run
    code.

    Raises
    ------
    InvalidArgumentError : the states contain other objects.
    """
    torch.save(content, file)
    file.seek(0)
    found = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    if found:
        raise InvalidArgumentError(
            f"expected states of tensors and Python's own numbers, texts and containers, found "
            f"{', '.join(sorted(found))}: NumPy's numbers become Python's by float() or int()"
        )


def _reading(path: Path, label: str, parts: Mapping[str, Any]) -> Saved:
    """Return the states in a file for the given parts."""
    content = torch.load(path, weights_only=True)
    states = content["states"]
    check_parts(label, states, parts)
    loads = {n: _having(part, n, "load_state_dict") for n, part in parts.items()}
    for name, part in parts.items():  # before the store is restored
        if problem := _misfit(part, states[name]):
            raise InvalidArgumentError(
                f"{label!r}: expected the state of {name} as it was saved, found {problem}; "
                "nothing has changed"
            )

    @_with_rows()
    def load() -> None:
        for name, load_part in loads.items():
            load_part(states[name])

    return Saved(content["last_step"], load)


def _misfit(part: Any, state: Any) -> str:
    """Return the reason why a model or optimizer cannot load a state, as far as names and shapes
    show. "": it can load the state, or raises an error itself."""
    if type(part) is dict:
        return "" if is_plain(state) else "a dict in place of what has tensors"
    if isinstance(part, torch.optim.Optimizer):
        own, saved = (
            [len(group["params"]) for group in groups]
            for groups in (part.param_groups, state["param_groups"])
        )
        return "" if own == saved else f"groups of {own} parameters, not of {saved}"
    if getattr(type(part), "load_state_dict", None) is not torch.nn.Module.load_state_dict:
        return ""
    if any(of._load_state_dict_pre_hooks for of in part.modules()):  # hooks may rename entries
        return ""
    if any(map(torch.nn.parameter.is_lazy, part.parameters())):
        return ""
    with _with_rows():
        own = part.state_dict()
    if own.keys() != state.keys():
        return f"{sorted(own.keys() ^ state.keys())[:4]} in one of both only"
    shapes = [
        f"{name} of shape {(*own[name].shape,)}, not {(*saved.shape,)}"
        for name, saved in state.items()
        if isinstance(saved, torch.Tensor) and own[name].shape != saved.shape
    ]
    return ", ".join(shapes[:4])


def _having(part: Any, name: str, method: str) -> Callable[..., Any]:
    """Return a method of a part; for a dict, which has no such method, return a function that does
    the same."""
    if type(part) is dict and is_plain(part):
        return part.copy if method == "state_dict" else partial(filled, part)
    found = getattr(part, method, None)
    if not callable(found):
        raise wrong_part(name, f"{method}()", part)
    own: Callable[..., Any] = found
    return own


FILE = KeptFile("torch", ".pt", _writing, _reading)
