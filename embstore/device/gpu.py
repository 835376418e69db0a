"""A GPU: what is launched for each verb of the Device protocol, and with what.

The kernels are the `.cu` files of `embstore/kernels`; each tells its formula, and every line here
is about the order of work and where its arrays are. Work is given to the runtime (`runtime.py`) and
not waited for; the host waits where the protocol says that something is known, once a call when
nothing is missing.

    a call       unique, probe (, sum_by_key) ... settle: the one wait ... gather or apply
    its misses   read_slots of the victims, their rows down; rows up, piece by piece, insert: waits

    gpu_launch   launches, arrays on their way        scratch   memory of a call
    gpu_keys     unique, probe, the index             staging   pinned buffers
    gpu_rows     gather, sums, optimizers, misses     slabs     memory of slots
    gpu_slots    what is in slots, victims

Slots and the index are all that is held for long. What a call needs is scratch: some 100 bytes a
key, and its rows, gradients and sums. Several tables of a pool cost one launch of each kernel, not
one each.
"""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from embstore.device.gpu_keys import KeyVerbs
from embstore.device.gpu_rows import RowVerbs
from embstore.device.gpu_slots import SlotVerbs
from embstore.device.runtime import DeviceArray, Runtime
from embstore.errors import CapacityError, InvalidArgumentError
from embstore.kernels.sources import VERBS

RESERVE_BYTES = 2 << 30
"""Memory beside the cache: a lookup and an update of a million keys and rows of 128 fp32 on the
host take three quarters of it."""


class GpuDevice(KeyVerbs, RowVerbs, SlotVerbs):
    """The Device protocol on a GPU. One thread calls it at a time.

    Parameters
    ----------
    runtime : the GPU
    threads : that fill and empty pinned buffers, the caller included; None: one a core, at most 8
    """

    keeps_batches = False

    def __init__(self, runtime: Runtime, threads: int | None = None) -> None:
        super().__init__(runtime, threads)
        self.name = runtime.name

    def facts(self) -> dict[str, Any]:
        """Return the runtime's facts, and the bytes of scratch memory."""
        return self.runtime.facts() | {"scratch_bytes": self.scratch.allocated_bytes}

    def warm_up(self) -> None:
        """Compile every kernel."""
        self.runtime.compile(VERBS)

    def close(self) -> None:
        """End the threads, and wait for all work. Arrays that were handed out stay valid."""
        self._workers.close()
        if not self.is_lost:
            self.wait()
        self._staged = None
        self._staging.close()
        self.scratch.close()
        self.runtime.close()

    def check_budget(self, cache_bytes: int, held_bytes: int) -> None:
        facts = self.runtime.facts()
        free = facts["memory_free_bytes"] + held_bytes + self.scratch.allocated_bytes
        if cache_bytes + RESERVE_BYTES > free:
            raise CapacityError(
                f"cache_bytes is {cache_bytes}; {self.name} has {free} bytes for the cache and "
                f"{RESERVE_BYTES} kept for calls, of {facts['memory_bytes']} in all: give "
                f"{max(free - RESERVE_BYTES, 0)} or less"
            )

    def adopt(
        self, array: Any, dtype: DTypeLike, dimensions: int, *, write: bool = False
    ) -> DeviceArray | None:
        try:
            interface = getattr(array, "__cuda_array_interface__", None)
        except RuntimeError as exc:  # PyTorch's, of a tensor that requires gradients
            raise InvalidArgumentError(f"expected an array that may be read: {exc}") from exc
        if interface is None:
            return None
        if len(interface["shape"]) != dimensions:
            raise InvalidArgumentError(
                f"expected an array of {dimensions} dimensions, found shape {interface['shape']}"
            )
        address, is_read_only = interface["data"]
        if address % np.dtype(dtype).itemsize or (write and is_read_only):
            raise InvalidArgumentError(
                "expected an aligned array" + (" that may be written" if write else "")
            )
        return self.runtime.adopt(array, dtype)
