"""Compiled functions: three decorators, and the names that only compiled code can use.

A **kernel** is called from Python. It has one signature, which its annotations define, and is
compiled for exactly this signature: an array of another type raises TypeError. A **building block**
is called from kernels, and LLVM inlines it. An **operation** is a function that kernels compile in
place of a function of plain Python.

All of these functions are compiled without fast-math and with NumPy's error model. (Python's error
model would test each divisor, so that no loop with a division would be vectorised.) LLVM does not
contract multiplications and additions by itself. Numba promotes `float32 * int` to float64 and
`uint64 + int` to float64, so constants are typed where it matters.

    parameters   the annotations of parameters
    jit          the names for writing kernels; loading kernels
    cached       where compiled kernels are stored
    loading      making a function of Python from machine code
    compiling    compiling kernels that are not stored, in several processes
    codegen      compiling one kernel to machine code, by Numba
    intrinsics   LLVM's operations for kernels

Only the last two modules import Numba, and they are imported only for compiling. If all kernels are
compiled, a process only loads machine code, which takes a tenth of the processor time.
"""

import threading
from collections.abc import Callable, Iterable
from functools import cached_property, update_wrapper
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

from embstore.arithmetic.parameters import *  # noqa: F403 - kernels take all they need from here
from embstore.arithmetic.parameters import Parameter
from embstore.version import pip_install

try:
    from embstore.arithmetic import cached, loading

    if find_spec("numba") is None:
        raise ImportError
except ImportError:
    raise ModuleNotFoundError(
        f"embstore's compiled kernels need Numba: {pip_install('fast')}", name="numba"
    ) from None

Function = TypeVar("Function", bound=Callable[..., Any])
Progress = Callable[[int, int], None]
"""A function that gets the number of kernels compiled so far and the number of all kernels. It is
also called every few seconds while one kernel is being compiled."""


class Kernel:
    """A function compiled for the one signature that its annotations define.

    Each kernel has a class of its own. When the machine code is loaded, it replaces the `__call__`
    of this class, so that a call of a loaded kernel runs no Python.
    """

    _lock = threading.RLock()  # shared by all kernels

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__class__ = type(function.__name__, (type(self),), {})
        update_wrapper(self, function)
        self.function = function
        self.name = f"{function.__module__}.{function.__qualname__}"
        self._is_loaded = False  # written under the lock

    @cached_property
    def parameters(self) -> list[Parameter]:
        """The types of the kernel's parameters."""
        hints = get_type_hints(self.function, include_extras=True)
        hints.pop("return", None)
        return [hint.__metadata__[0] for hint in hints.values()]

    def is_loaded(self) -> bool:
        """Load the stored code, if there is any; return whether the kernel can be called."""
        with self._lock:
            code = None if self._is_loaded else cached.kept(self)
            if code is not None:
                self.take(code)
            return self._is_loaded

    def take(self, code: bytes) -> None:
        """Load code that was compiled for this kernel."""
        with self._lock:
            entry = loading.load(self.function.__name__, code)
            type.__setattr__(type(self), "__call__", staticmethod(entry))
            self._is_loaded = True

    def __call__(self, *arguments: Any) -> Any:
        """Load the machine code, or compile all kernels, and then call the kernel."""
        if not self.is_loaded():
            compile_kernels()
        return self(*arguments)


class Symbol:
    """A name in a kernel. When Numba compiles the kernel, the object that `make` returns stands for
    it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @cached_property
    def compiled(self) -> Any:
        """The object for Numba."""
        return self._make()

    @property
    def _numba_type_(self) -> Any:
        """The attribute in which Numba looks for the type of an object of another library."""
        return codegen().type_of(self.compiled)

    def __call__(self, *arguments: Any) -> Any:
        """Compile and call the object, from Python."""
        return self.compiled(*arguments)


kernels: list[Kernel] = []  # The kernels of the modules imported so far.
operations: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
"""Functions of plain Python, each with the function that kernels compile in its place, as far as
they are not yet registered with Numba."""


def kernel(function: Function) -> Function:
    """Make `function` a kernel. Its parameters are positional; their annotations are types of the
    module `parameters`."""
    compiled = Kernel(function)
    kernels.append(compiled)
    return cast(Function, compiled)


def building_block(function: Function) -> Function:
    """Make `function` a building block: kernels can call it, and it is inlined in them. LLVM by
    itself would often make a call, in which an array is seven arguments."""
    block = Symbol(lambda: codegen().dispatcher(function))
    return cast(Function, update_wrapper(block, function))


def operation(generic: Callable[..., Any]) -> Callable[[Function], Function]:
    """Make kernels compile and inline the decorated function in place of `generic`."""

    def register(function: Function) -> Function:
        operations.append((generic, function))
        return function

    return register


def compile_kernels(progress: Progress | None = None) -> None:
    """Load every kernel imported so far; compile kernels that are not stored anywhere. Any thread.

    progress : a function that is called after each kernel that is compiled, and every few seconds
        in between; None: progress is reported in the log "embstore"

    Raises EmbstoreError if kernels cannot be compiled.
    """
    with Kernel._lock:
        missing = [kernel for kernel in kernels if not kernel.is_loaded()]
        if missing:
            compiling = import_module("embstore.arithmetic.compiling")
            compiling.compile_missing(missing, len(kernels), progress or compiling.Spoken())


def address(array: NDArray[Any] | None) -> int:
    """Return the address of a C-contiguous array, 0 for None. Kernels take arrays of such
    addresses."""
    if array is None:
        return 0
    assert array.flags.c_contiguous, "a kernel would read another array"
    return cast(int, array.__array_interface__["data"][0])


def addresses(arrays: Iterable[NDArray[Any] | None]) -> NDArray[np.int64]:
    """Return the address of each array, (n,)."""
    return np.array([address(array) for array in arrays], np.int64)


def c_function(name: str, returns: str, *arguments: str) -> Any:
    """Return a function of the C library for kernels. `returns` and `arguments` are Numba's names
    of types."""
    return Symbol(lambda: codegen().external(name, returns, *arguments))


def codegen() -> Any:
    """Import the compiler, and register with Numba all operations that are not registered yet."""
    module = import_module("embstore.arithmetic.codegen")
    while operations:
        module.register(*operations.pop())
    return module


def _intrinsic(name: str) -> Any:
    return Symbol(lambda: getattr(import_module("embstore.arithmetic.intrinsics"), name))


carray: Any = _intrinsic("carray")
"""`numba.carray`: return the array with a pointer, a shape and a dtype."""
pointer_at: Any = _intrinsic("pointer_at")
"""Turn an address into a pointer for `carray`."""
bits_of: Any = _intrinsic("bits_of")
"""Return the bits of a float32 as int32."""
float_of: Any = _intrinsic("float_of")
"""Return the float32 whose bits are the bits of an int32."""
prefetch: Any = _intrinsic("prefetch")
"""Prefetch the cache line at an address, for reading. A wrong address does no harm."""
prefetch_to_write: Any = _intrinsic("prefetch_to_write")
"""Prefetch the cache line at an address, for writing."""
equal_among_8: Any = _intrinsic("equal_among_8")
"""Compare the 8 int64 at an address (aligned to 64 bytes) with a key; return a set bit for each
equal one."""
lowest_bit: Any = _intrinsic("lowest_bit")
"""Return the number of the lowest set bit of an int64, 64 for 0."""
bit_count: Any = _intrinsic("bit_count")
"""Return the number of bits that are set in an int64."""
crc32c_word: Any = _intrinsic("crc32c_word")
"""Continue a CRC-32C with the eight bytes of a uint64. Only for processors with SSE 4.2."""
blake2b_compress: Any = _intrinsic("blake2b_compress")
"""Compress the next 128 bytes of LANES messages, in the scratch array (blake2b.py) at an
address."""
