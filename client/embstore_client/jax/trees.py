"""Pytrees in a file of NumPy, saved with a checkpoint of the store. Nothing is pickled.

    arr_0           JSON: {"last_step": n, "parts": {name: [[path, shape, dtype], ...]}}, where n
                    is the resume position
    arr_1, ...      the bytes of the leaves, one part after the other

A tree is identified by the paths of its leaves. The trees that are passed to `load` must have the
same paths, with leaves of the same shapes and dtypes. The loaded trees have the same kinds of
containers and leaves as the passed trees: JAX arrays with their sharding, random keys, NumPy
arrays, and Python numbers.
"""

import json
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax  # type: ignore[import-not-found, unused-ignore]
import numpy as np
from numpy.typing import NDArray

from embstore.errors import InvalidArgumentError
from embstore_client.frameworks.saving import KeptFile, Saved, check_parts


class _Leaf(NamedTuple):
    """The properties of a leaf; a saved leaf is loaded only in place of a leaf with the same
    properties."""

    path: str
    shape: list[int]
    dtype: str


def _writing(parts: Mapping[str, Any], last_step: int) -> Callable[[BinaryIO], None]:
    """Return a function that writes some pytrees."""
    leaves = {name: _leaves(name, tree) for name, tree in parts.items()}
    described = {name: [leaf for leaf, _ in of] for name, of in leaves.items()}
    content = json.dumps({"last_step": last_step, "parts": described}).encode()
    arrays = [array.tobytes() for of in leaves.values() for _, array in of]
    saved = [np.frombuffer(part, np.uint8) for part in (content, *arrays)]
    return lambda file: np.savez(file, *saved)


def _reading(path: Path, label: str, parts: Mapping[str, Any]) -> Saved:
    """Return the pytrees in a file, in the form of the given pytrees."""
    leaves = {name: _leaves(name, tree) for name, tree in parts.items()}
    with np.load(path, allow_pickle=False) as file:
        content = json.loads(file["arr_0"].tobytes())
        check_parts(label, content["parts"], parts)
        found, indices = {}, count(1)
        for name, described in content["parts"].items():
            _check_same(
                f"checkpoint {label!r}: {name}", described, [leaf for leaf, _ in leaves[name]]
            )
            givens, form = jax.tree.flatten(parts[name])
            arrays = [
                file[f"arr_{next(indices)}"].view(like.dtype).reshape(like.shape)
                for _, like in leaves[name]
            ]
            found[name] = form.unflatten(map(_in_form_of, givens, arrays))
    return Saved(content["last_step"], lambda: found)


def _leaves(name: str, tree: Any) -> list[tuple[_Leaf, NDArray[Any]]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    found = []
    for path, value in leaves:
        where = jax.tree_util.keystr(path)
        array = np.asarray(jax.random.key_data(value) if _is_key(value) else value)
        dtype = str(value.dtype) if _is_key(value) else str(array.dtype)
        if array.dtype.hasobject or array.dtype.kind in "US":
            raise InvalidArgumentError(
                f"{name}{where}: expected an array or a number, found {type(value).__name__}"
            )
        found.append((_Leaf(where, list(array.shape), dtype), array))
    return found


def _in_form_of(given: Any, array: NDArray[Any]) -> Any:
    if _is_key(given):
        return jax.random.wrap_key_data(array, impl=jax.random.key_impl(given))
    if isinstance(given, jax.Array):
        return jax.device_put(array, given.sharding)
    return array if isinstance(given, np.ndarray) else type(given)(array[()])


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)


def _check_same(what: str, saved: list[list[Any]], given: list[_Leaf]) -> None:
    wanted = [_Leaf(*leaf) for leaf in saved]
    for left, right in zip(wanted, given, strict=False):
        if left != right:
            raise InvalidArgumentError(f"{what}: expected the leaf {left}, found {right}")
    if len(wanted) != len(given):
        raise InvalidArgumentError(f"{what}: expected {len(wanted)} leaves, found {len(given)}")


FILE = KeptFile("jax", ".npz", _writing, _reading)
