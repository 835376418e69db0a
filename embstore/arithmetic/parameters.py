"""The types of parameters of kernels, for use as annotations.

Arrays are C-contiguous. If the name of an array type ends in "In", kernels only read the array, so
a caller can pass a read-only array.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore.layout import ELEMENT


class Parameter(NamedTuple):
    """The type of a parameter of a kernel: a number or an array."""

    dtype: str
    dimensions: int = 0
    """The number of dimensions of an array; 0: the parameter is a number."""
    readonly: bool = False


def _one(dtype: str) -> Parameter:
    return Parameter(dtype, 1)


def _read(dtype: str) -> Parameter:
    return Parameter(dtype, 1, readonly=True)


def _two(dtype: str) -> Parameter:
    return Parameter(dtype, 2)


def _read_two(dtype: str) -> Parameter:
    return Parameter(dtype, 2, readonly=True)


Int8sIn = Annotated[NDArray[np.int8], _read("int8")]
Int32s = Annotated[NDArray[np.int32], _one("int32")]
Int32sIn = Annotated[NDArray[np.int32], _read("int32")]
Int64s = Annotated[NDArray[np.int64], _one("int64")]
Int64sIn = Annotated[NDArray[np.int64], _read("int64")]
Int64Rows = Annotated[NDArray[np.int64], _two("int64")]
Int64RowsIn = Annotated[NDArray[np.int64], _read_two("int64")]
Uint8s = Annotated[NDArray[np.uint8], _one("uint8")]
Uint8sIn = Annotated[NDArray[np.uint8], _read("uint8")]
Uint8Rows = Annotated[NDArray[np.uint8], _two("uint8")]
Uint8RowsIn = Annotated[NDArray[np.uint8], _read_two("uint8")]
Uint16s = Annotated[NDArray[np.uint16], _one("uint16")]
Uint32s = Annotated[NDArray[np.uint32], _one("uint32")]
Uint32sIn = Annotated[NDArray[np.uint32], _read("uint32")]
Uint32Rows = Annotated[NDArray[np.uint32], _two("uint32")]
Uint32RowsIn = Annotated[NDArray[np.uint32], _read_two("uint32")]
Uint64s = Annotated[NDArray[np.uint64], _one("uint64")]
Uint64sIn = Annotated[NDArray[np.uint64], _read("uint64")]
Uint64Rows = Annotated[NDArray[np.uint64], _two("uint64")]
Uint64RowsIn = Annotated[NDArray[np.uint64], _read_two("uint64")]
Float32s = Annotated[NDArray[np.float32], _one("float32")]
Float32sIn = Annotated[NDArray[np.float32], _read("float32")]
Float32Rows = Annotated[NDArray[np.float32], _two("float32")]
Float32RowsIn = Annotated[NDArray[np.float32], _read_two("float32")]
# Arrays of the dtype in which rows are stored.
Elements = Annotated[NDArray[Any], _one(ELEMENT.name)]
Rows = Annotated[NDArray[Any], _two(ELEMENT.name)]
RowsIn = Annotated[NDArray[Any], _read_two(ELEMENT.name)]
Int = Annotated[int, Parameter("int64")]
Bool = Annotated[bool, Parameter("bool")]
Float32 = Annotated[np.float32, Parameter("float32")]
