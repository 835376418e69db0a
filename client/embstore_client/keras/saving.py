"""A checkpoint of the store and a file of variables, under one label.

file    last_step, and "part/index" for each of a part's variables: arrays of NumPy (.npz)
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.saving import KeptFile, Saved, check_parts

_PLACE = "last_step"


def _writing(parts: Mapping[str, Any], last_step: int) -> Callable[[BinaryIO], None]:
    """Return what writes the variables of parts."""
    content = {
        f"{name}/{index}": variable.value.numpy()
        for name, part in parts.items()
        for index, variable in enumerate(_variables(part, name))
    }
    content[_PLACE] = np.int64(last_step)
    return lambda file: np.savez(file, **content)


def _reading(path: Path, label: str, parts: Mapping[str, Any]) -> Saved:
    """Return the arrays that a file has for the variables of the parts."""
    with np.load(path, allow_pickle=False) as file:
        content = dict(file)
    found: dict[str, list[NDArray[Any]]] = {}
    place = int(content.pop(_PLACE))
    for key, array in content.items():  # in the order of the file
        found.setdefault(key.partition("/")[0], []).append(array)
    check_parts(label, found, parts)
    fitting = {
        name: _fitting(label, name, found[name], _variables(part, name))
        for name, part in parts.items()
    }

    def load() -> None:
        for name, part in parts.items():
            for variable, array in zip(part.variables, fitting[name], strict=True):
                variable.assign(array)

    return Saved(place, load)


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


FILE = KeptFile("keras", ".npz", _writing, _reading)
