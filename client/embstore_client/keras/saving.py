"""A checkpoint of the store and a file of variables, under one label.

file    last_step, and "part/index" for each of a part's variables: arrays of NumPy (.npz)
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore_client.frameworks.saving import KeptFile, check_parts

_FILE = KeptFile("keras", ".npz")
_PLACE = "last_step"


def save(
    store: Store,
    label: str,
    parts: Mapping[str, Any],
    *,
    last_step: int,
    directory: str | os.PathLike[str],
) -> None:
    """Keep store and parts (what has Keras `variables`) under `label`; see `StoreLayer.save`."""
    arrays = {
        f"{name}/{index}": variable.value.numpy()
        for name, part in parts.items()
        for index, variable in enumerate(_variables(part, name))
    }
    content = arrays | {_PLACE: np.int64(last_step)}
    _FILE.save(store, label, lambda file: np.savez(file, **content), directory=directory)


class Saved(NamedTuple):
    """What a file has."""

    last_step: int
    arrays: dict[str, list[NDArray[Any]]]

    def load(self, parts: Mapping[str, Any]) -> int:
        """Bring the parts to what it has; return the place."""
        for name, part in parts.items():
            for variable, array in zip(part.variables, self.arrays[name], strict=True):
                variable.assign(array)
        return self.last_step


def read(
    store: Store, label: str, parts: Mapping[str, Any], *, directory: str | os.PathLike[str]
) -> Saved:
    """Return what the file of a checkpoint has for the parts; changes nothing.

    Raises
    ------
    CheckpointNotFoundError : the label is not kept.
    InvalidArgumentError : `save` has not made it, or with other parts or variables.
    OSError : the file cannot be read.
    """
    with np.load(_FILE.find(store, label, directory=directory), allow_pickle=False) as file:
        content = dict(file)
    found: dict[str, list[NDArray[Any]]] = {}
    place = int(content.pop(_PLACE))
    for key, array in content.items():  # in the order of the file
        found.setdefault(key.partition("/")[0], []).append(array)
    check_parts(label, found, parts)
    for name, part in parts.items():
        found[name] = _fitting(label, name, found[name], _variables(part, name))
    return Saved(place, found)


def _fitting(
    label: str, name: str, arrays: list[NDArray[Any]], variables: list[Any]
) -> list[NDArray[Any]]:
    """Return arrays in the dtypes of their variables: NumPy does not keep the name of bfloat16."""
    wanted = [variable.value.numpy() for variable in variables]
    saved = [(array.shape, array.dtype.itemsize) for array in arrays]
    if saved != [(array.shape, array.dtype.itemsize) for array in wanted]:
        raise InvalidArgumentError(
            f"checkpoint {label!r}: expected {name} to have the {len(saved)} variables that were "
            f"saved, found {len(wanted)}, or of other shapes; an optimizer has them when it is "
            "built"
        )
    return [array.view(like.dtype) for array, like in zip(arrays, wanted, strict=True)]


def _variables(part: Any, name: str) -> list[Any]:
    variables = getattr(part, "variables", None)
    if not variables:
        raise InvalidArgumentError(
            f"expected {name} to have variables, found {type(part).__name__} without; build it "
            "first"
        )
    return list(variables)
