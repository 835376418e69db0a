"""CUDA tensors of Torch where there is no GPU: their memory is the host's, and the emulated GPU of
a store takes it for its own.

A tensor says that it is on cuda:0, and shows `__cuda_array_interface__`. In the trainer's thread
everything that Torch computes is on the GPU, and a way to the host raises: it would wait for the
GPU. What is copied to the GPU from memory that is not pinned would, too, and is counted. In other
threads, as that of a loader, tensors may be read.

Torch's work is done at once, as in a stream that is never behind; before it, what the store has
been asked to do for that stream: whoever forgets to order the stream reads what was there before.
"""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from embstore_client.torch import gpu
from tests.kernels.emulation.callers import CALLERS

DEVICE = torch.device("cuda:0")
PLACES = ("cpu", "cuda", "cuda:0")
TO_HOST = frozenset(
    "cpu numpy tolist item __array__ __bool__ __float__ __int__ __index__ __complex__ __contains__ "
    "nonzero unique argwhere masked_select equal allclose is_nonzero pin_memory".split()
)
"""Of functions of Torch: each waits for the GPU."""
GETTERS: dict[Any, str] = {
    torch.Tensor.device.__get__: "device",
    torch.Tensor.is_cuda.__get__: "is_cuda",
    torch.Tensor.__cuda_array_interface__.__get__: "interface",
}


class CudaTensor(torch.Tensor):
    """A tensor that says so in every thread; in the trainer's, `EmulatedCuda` answers for all."""

    cuda_of: ClassVar["EmulatedCuda"]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = cls.cuda_of.answered(func, args, kwargs or {})
        return _there(found) if func.__name__ != "cpu" else found


def _there(found: Any) -> Any:
    if isinstance(found, tuple | list):
        return type(found)(map(_there, found))
    return found.as_subclass(CudaTensor) if isinstance(found, torch.Tensor) else found


class _Stream:
    """The stream that Torch has of all threads."""

    cuda_stream = CALLERS

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    __hash__ = None  # type: ignore[assignment]

    def record_event(self) -> None:
        pass

    def wait_event(self, event: None) -> None:
        pass


class EmulatedCuda(TorchFunctionMode):
    """Torch's CUDA beside a store on an emulated GPU; a mode of Torch, in the trainer's thread."""

    def __init__(self, runtime: Any, turn: Any, patch: pytest.MonkeyPatch) -> None:
        """Use a runtime, one thread at a time by `turn`."""
        super().__init__()
        self._runtime = runtime
        self._runtime.turn = turn
        self._thread = threading.get_ident()
        self._on_host: dict[int, Any] = {}  # what has the memory of tensors there, by address
        self._lent: set[int] = set()
        self._may_read = False
        self.copied_to = 0
        """Copies from memory of the host that is not pinned, in the trainer's thread."""
        self.elements_read = 0
        """In that thread, where it may."""
        CudaTensor.cuda_of = self
        patch.setattr(gpu, "_stream", lambda device: _Stream())
        patch.setattr(gpu, "_copied", self._copied)
        patch.setattr(gpu, "there", self._waited)
        patch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
        patch.setattr(torch, "from_numpy", self._from_numpy(torch.from_numpy))

    @classmethod
    def of(cls, store: Any, patch: pytest.MonkeyPatch) -> "EmulatedCuda":
        """Return that of a trainer which has a store in its process."""
        engine = store.executor
        return cls(engine.device.runtime, engine.tables.frame.turn, patch)

    def tensor(self, content: Any) -> Any:
        """Return a tensor on the GPU with the content of one of the host, or of an array."""
        return torch.tensor(np.array(content)).as_subclass(CudaTensor)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let the trainer's thread read tensors, and count that."""
        self._may_read = True
        yield
        self._may_read = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.answered(func, args, kwargs or {})

    def answered(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return what a function of Torch does, of tensors on the GPU or of the host."""
        is_trainers, name = threading.get_ident() == self._thread, func.__name__
        getter = GETTERS.get(func)
        with torch._C.DisableTorchFunctionSubclass():
            if getter is not None:
                return self._of(getter, args[0])
            with self._runtime.turn():
                self._runtime.run(CALLERS)
            if is_trainers and name == "backward":
                with self:  # for hooks, and what is computed backwards
                    return _gone_back(args[0])
            devices = [torch.device(of) for of in (*args[1:], *kwargs.values()) if _is_device(of)]
            to_host = name in TO_HOST or (name == "to" and torch.device("cpu") in devices)
            to_host |= name == "repeat_interleave" and "output_size" not in kwargs
            if to_host and is_trainers and not self._is_host(args[0]):
                assert self._may_read, f"{name} of a tensor on the GPU"
                self.elements_read += args[0].numel()
            if DEVICE not in devices:
                return (
                    self._on_the_host(func(*args, **kwargs)) if to_host else func(*args, **kwargs)
                )
            return self._copy(func, [of for of in args if not _is_device(of)], kwargs)

    def _copy(self, func: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Do what makes a tensor on the GPU, perhaps of one of the host."""
        options = {name: value for name, value in kwargs.items() if name != "device"}
        from_host = bool(args) and (isinstance(args[0], np.ndarray) or self._is_host(args[0]))
        found = func(*args, **options)
        if not from_host:
            return found
        self.copied_to += threading.get_ident() == self._thread
        return found.clone()

    def _of(self, getter: str, tensor: Any) -> Any:
        is_host = self._is_host(tensor)
        if getter == "device":
            return torch.device("cpu") if is_host else DEVICE
        if getter == "is_cuda":
            return not is_host
        assert not is_host and not tensor.requires_grad and tensor.is_contiguous()
        self._lend(tensor)
        dtype = torch.empty(0, dtype=tensor.dtype).numpy().dtype
        return {
            "shape": tuple(tensor.shape),
            "typestr": dtype.str,
            "data": (tensor.data_ptr(), False),
            "strides": None,
            "version": 2,
        }

    def _lend(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if not size or address in self._lent:
            return
        self._lent.add(address)
        memory = (ctypes.c_uint8 * size).from_address(address)
        memory.storage = storage  # type: ignore[attr-defined]  # which keeps the memory
        with self._runtime.turn():
            self._runtime.lend(np.frombuffer(memory, np.uint8))

    def _is_host(self, tensor: Any) -> bool:
        if isinstance(tensor, CudaTensor) or not isinstance(tensor, torch.Tensor):
            return False
        if threading.get_ident() != self._thread:
            return True
        return tensor.numel() > 0 and tensor.untyped_storage().data_ptr() in self._on_host

    def _on_the_host(self, found: Any) -> Any:
        """Return what was copied there, and know it again."""
        if isinstance(found, torch.Tensor):
            found = found.clone()
            self._on_host[found.untyped_storage().data_ptr()] = found
        return found

    def _from_numpy(self, own: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], Any]:
        def from_numpy(array: np.ndarray) -> Any:
            found = own(array)
            self._on_host[found.untyped_storage().data_ptr()] = array
            return found

        return from_numpy

    def _waited(self, array: Any, device: Any) -> Any:
        return self.tensor(array) if device == DEVICE else torch.from_numpy(array)

    def _copied(self, arrays: Any, device: Any) -> Any:
        assert device == DEVICE
        assert threading.get_ident() != self._thread, "a loader's thread does that"
        return self.tensor(np.concatenate(arrays).astype(np.int64))


def _gone_back(loss: Any) -> None:
    """Do what `backward` of a loss does, but for leaving a mode."""
    roots, keep = (loss,), False
    run = torch.autograd.graph._engine_run_backward
    run(
        roots,
        (torch.ones_like(loss),),
        keep,
        False,
        (),
        allow_unreachable=True,
        accumulate_grad=True,
    )


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value in PLACES)
