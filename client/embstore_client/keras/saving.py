"""A checkpoint of the store and a file of variables, under one label.

file    arrays of NumPy (.npz): last_step; "part/index" for each variable of a part; "part/json" for
        a part that is a dict
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.saving import (
    KeptFile,
    Saved,
    check_parts,
    filled,
    is_plain,
    wrong_part,
)

_PLACE = "last_step"
_JSON = "json"


def _writing(parts: Mapping[str, Any], last_step: int) -> Callable[[BinaryIO], None]:
    """Return a function that writes the variables of parts, and the parts that are dicts."""
    content: dict[str, Any] = {
        f"{name}/{place}": array
        for name, part in parts.items()
        for place, array in _arrays(part, name).items()
    }
    content[_PLACE] = np.array(last_step)
    return lambda file: np.savez(file, **content)


def _arrays(part: Any, name: str) -> dict[str, NDArray[Any]]:
    if type(part) is dict and is_plain(part):
        return {_JSON: np.frombuffer(json.dumps(part).encode(), np.uint8)}
    variables = enumerate(_variables(part, name))
    return {str(index): variable.value.numpy() for index, variable in variables}


def _reading(path: Path, label: str, parts: Mapping[str, Any]) -> Saved:
    """Return the arrays in a file for the variables of the parts, and the parts that are dicts."""
    with np.load(path, allow_pickle=False) as file:
        content = dict(file)
    found: dict[str, dict[str, NDArray[Any]]] = {}
    last_step = int(content.pop(_PLACE))
    for key, array in content.items():  # in the order of the file
        name, _, place = key.partition("/")
        found.setdefault(name, {})[place] = array
    check_parts(label, found, parts)
    loads = [_loading(label, name, found[name], part) for name, part in parts.items()]

    def load() -> None:
        for load_part in loads:
            load_part()

    return Saved(last_step, load)


def _loading(
    label: str, name: str, arrays: dict[str, NDArray[Any]], part: Any
) -> Callable[[], None]:
    """Return a function that sets a part to the arrays of a file, after checking that the arrays
    fit the part."""
    is_dict = type(part) is dict
    if is_dict != (_JSON in arrays):
        raise InvalidArgumentError(
            f"checkpoint {label!r}: expected {name} to be {'variables' if is_dict else 'a dict'}, "
            f"as it was saved, found {type(part).__name__}"
        )
    if is_dict:
        saved = json.loads(arrays[_JSON].tobytes())
        return partial(filled, part, saved)
    fitting = _fitting(label, name, [*arrays.values()], _variables(part, name))

    def load() -> None:
        for variable, array in zip(part.variables, fitting, strict=True):
            variable.assign(array)

    return load


def _fitting(
    label: str, name: str, arrays: list[NDArray[Any]], variables: list[Any]
) -> list[NDArray[Any]]:
    """Return arrays in the dtypes of their variables; a file of NumPy does not keep the dtype
    bfloat16."""
    wanted = [variable.value.numpy() for variable in variables]
    saved = [(array.shape, array.dtype.itemsize) for array in arrays]
    if saved != [(array.shape, array.dtype.itemsize) for array in wanted]:
        raise InvalidArgumentError(
            f"checkpoint {label!r}: expected {name} to have the {len(saved)} variables that were "
            f"saved, found {len(wanted)}, or of other shapes; build an optimizer before you load "
            "it, by its build(variables)"
        )
    return [array.view(like.dtype) for array, like in zip(arrays, wanted, strict=True)]


def _variables(part: Any, name: str) -> list[Any]:
    variables = getattr(part, "variables", None)
    if not variables:
        raise wrong_part(name, "variables, as it has when it is built", part)
    return list(variables)


FILE = KeptFile("keras", ".npz", _writing, _reading)
