"""Arrays of a trainer on the emulated GPU, in a stream of its own that nobody waits for.

A trainer's library and the store use a GPU side by side; an emulated runtime has one thread at a
time, so whoever makes or reads such an array while others may call the store sets `runtime.turn`.

What a trainer writes is done when the store's work has followed its stream, and what it reads when
its stream has followed the store's: whoever forgets one of them reads garbage.
"""

from functools import partial
from typing import Any

import numpy as np

from embstore.device.runtime import DeviceArray

CALLERS = 3
"""The trainer's stream; COMPUTE, UP and DOWN are the store's."""


class CallersArray:
    """An array in the device's memory, as CuPy shows it: it names its stream."""

    def __init__(self, runtime: Any, d_array: DeviceArray) -> None:
        self._runtime, self._d_array = runtime, d_array
        width = d_array.width
        self.shape = (d_array.count,) if width == 1 else (d_array.count, width)
        self.dtype = d_array.dtype
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": d_array.dtype.str,
            "data": (d_array.address, False),
            "version": 3,
            "stream": CALLERS,
        }

    @classmethod
    def of(cls, runtime: Any, content: np.ndarray) -> "CallersArray":
        """Return an array that the trainer's stream is still writing."""
        width = content.shape[1] if content.ndim == 2 else 1
        kept = np.ascontiguousarray(content).view(np.uint8).reshape(-1).copy()
        with runtime.turn():
            array = cls(runtime, runtime.allocate(len(content), content.dtype, width=width))
            runtime.give(partial(np.copyto, runtime.bytes_of(array._d_array), kept), CALLERS)
        array.shape = array.__cuda_array_interface__["shape"] = content.shape
        return array

    def __len__(self) -> int:
        return self.shape[0]

    def get(self) -> np.ndarray:
        """Copy the array to the host, as CuPy names it."""
        return self.content()

    def content(self) -> np.ndarray:
        """Return what the trainer's stream reads."""
        with self._runtime.turn():
            self._runtime.run(CALLERS)
            found = self._runtime.bytes_of(self._d_array)
            return found.view(self.dtype).reshape(self.shape).copy()

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("an array in the device's memory was taken to the host")
