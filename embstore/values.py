"""Values that contain arrays. Two values are equal if all their fields are equal; arrays are
compared bit by bit."""

from dataclasses import fields
from typing import Any

import numpy as np


class Value:
    """Base of dataclasses made with eq=False, whose fields can be arrays."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = (field.name for field in fields(self))  # type: ignore[arg-type]
        return all(same(getattr(self, name), getattr(other, name)) for name in names)

    def __hash__(self) -> int:
        return hash(type(self))  # arrays have no hash; equal values have one type


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal; arrays must agree in dtype, shape and bits."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return (
            isinstance(one, np.ndarray)
            and isinstance(other, np.ndarray)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, tuple | list) and type(one) is type(other):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)
