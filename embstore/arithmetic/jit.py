"""How this package compiles: three decorators, the types kernels are written in, and a few
intrinsics.

A **kernel** is called from Python. It has one signature, read from its annotations, and is compiled
for exactly that one, at its first call or by `compile_kernels()`: left to infer types, Numba would
compile again for some seconds in the middle of serving when a caller's array is read-only. A
**building block** is called from kernels and inlined by LLVM. An **operation** is what kernels
compile for a function of plain Python.

All are compiled without fast-math and with NumPy's error model (Python's would test each divisor,
so that no loop with a division is vectorised). LLVM contracts no multiply and add by itself. Numba
promotes `float32 * int` to float64 and `uint64 + int` to float64: constants are typed where it
matters.

What was compiled is kept (`cached.py`). Importing this module imports Numba; nothing in embstore
does at its own import.
"""

import threading
from collections.abc import Callable
from functools import update_wrapper
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

from embstore.layout import ELEMENT
from embstore.version import pip_install

try:
    import numba
    from llvmlite import ir  # type: ignore[import-untyped]
    from numba import njit, types
    from numba.extending import intrinsic, overload

    from embstore.arithmetic.cached import Kept
except ImportError as exc:
    raise ModuleNotFoundError(
        f"embstore's compiled kernels need Numba: {pip_install('fast')}", name="numba"
    ) from exc

Function = TypeVar("Function", bound=Callable[..., Any])


def _array(dtype: Any, dimensions: int = 1, *, readonly: bool = False) -> Any:
    return types.Array(dtype, dimensions, "C", readonly=readonly)


# C-contiguous; "In" is only read, so that a caller's read-only array is as good as any other.
Int8sIn = Annotated[NDArray[np.int8], _array(types.int8, readonly=True)]
Int32s = Annotated[NDArray[np.int32], _array(types.int32)]
Int32sIn = Annotated[NDArray[np.int32], _array(types.int32, readonly=True)]
Int64s = Annotated[NDArray[np.int64], _array(types.int64)]
Int64sIn = Annotated[NDArray[np.int64], _array(types.int64, readonly=True)]
Int64Rows = Annotated[NDArray[np.int64], _array(types.int64, 2)]
Int64RowsIn = Annotated[NDArray[np.int64], _array(types.int64, 2, readonly=True)]
Uint8s = Annotated[NDArray[np.uint8], _array(types.uint8)]
Uint16s = Annotated[NDArray[np.uint16], _array(types.uint16)]
Uint32s = Annotated[NDArray[np.uint32], _array(types.uint32)]
Uint32sIn = Annotated[NDArray[np.uint32], _array(types.uint32, readonly=True)]
Uint32Rows = Annotated[NDArray[np.uint32], _array(types.uint32, 2)]
Uint32RowsIn = Annotated[NDArray[np.uint32], _array(types.uint32, 2, readonly=True)]
Uint8sIn = Annotated[NDArray[np.uint8], _array(types.uint8, readonly=True)]
Uint8Rows = Annotated[NDArray[np.uint8], _array(types.uint8, 2)]
Uint8RowsIn = Annotated[NDArray[np.uint8], _array(types.uint8, 2, readonly=True)]
Uint64s = Annotated[NDArray[np.uint64], _array(types.uint64)]
Uint64sIn = Annotated[NDArray[np.uint64], _array(types.uint64, readonly=True)]
Uint64Rows = Annotated[NDArray[np.uint64], _array(types.uint64, 2)]
Uint64RowsIn = Annotated[NDArray[np.uint64], _array(types.uint64, 2, readonly=True)]
Float32s = Annotated[NDArray[np.float32], _array(types.float32)]
Float32sIn = Annotated[NDArray[np.float32], _array(types.float32, readonly=True)]
Float32Rows = Annotated[NDArray[np.float32], _array(types.float32, 2)]
Float32RowsIn = Annotated[NDArray[np.float32], _array(types.float32, 2, readonly=True)]
# As they are kept.
Elements = Annotated[NDArray[Any], _array(numba.from_dtype(ELEMENT))]
Rows = Annotated[NDArray[Any], _array(numba.from_dtype(ELEMENT), 2)]
RowsIn = Annotated[NDArray[Any], _array(numba.from_dtype(ELEMENT), 2, readonly=True)]
Int = Annotated[int, types.int64]
Bool = Annotated[bool, types.boolean]
Float32 = Annotated[np.float32, types.float32]

carray: Any = numba.carray  # type: ignore[attr-defined]  # public, but not to mypy

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def _dispatcher(function: Callable[..., Any]) -> Any:
    dispatcher = njit(**_OPTIONS)(function)
    dispatcher._cache = Kept(function)
    return dispatcher


def _writable(formal: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types of arguments whose arrays may all be written to."""
    return tuple(t.copy(readonly=False) if isinstance(t, types.Array) else t for t in formal)


class Kernel:
    """A function compiled for the one signature that its annotations name."""

    _lock = threading.Lock()  # Over all kernels: Numba compiles under one lock of its own anyway.

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.function = function
        self._entry: Any = None  # The dispatcher; None until compiled. Written under the lock.

    def compile(self) -> Any:
        """Compile, or load from the cache, once; return what to call."""
        with self._lock:
            if self._entry is None:
                hints = get_type_hints(self.function, include_extras=True)
                hints.pop("return", None)
                dispatcher = _dispatcher(self.function)
                formal = tuple(hint.__metadata__[0] for hint in hints.values())
                dispatcher.compile(formal)
                dispatcher.disable_compile()
                # Else the first call would register these, and a second one beside it, which finds
                # them registered meanwhile, would be refused ("No matching definition").
                dispatcher.typingctx.install_possible_conversions(_writable(formal), formal)
                self._entry = dispatcher
        return self._entry

    def __call__(self, *arguments: Any) -> Any:
        return (self._entry or self.compile())(*arguments)


kernels: list[Kernel] = []  # Of the modules imported so far.


def kernel(function: Function) -> Function:
    """Make `function` a kernel. Its parameters are annotated with the types above, positional
    only."""
    compiled = Kernel(function)
    kernels.append(compiled)
    return cast(Function, compiled)


def building_block(function: Function) -> Function:
    """Make `function` callable from kernels, and inlined there: left to choose, LLVM calls, and an
    array is seven arguments. (Called from Python it would compile on the spot.)"""
    return cast(Function, njit(forceinline=True, **_OPTIONS)(function))


def operation(generic: Callable[..., Any]) -> Callable[[Function], Function]:
    """Have kernels compile the decorated function for `generic`, and inline it."""

    def register(function: Function) -> Function:
        options: Any = {"forceinline": True, **_OPTIONS}
        overload(generic, jit_options=options, strict=False)(lambda *types: function)
        return function

    return register


def compile_kernels() -> None:
    """Compile every kernel imported so far, or load it from the cache. Any thread."""
    for compiled in kernels:
        compiled.compile()


def address(array: NDArray[Any] | None) -> int:
    """Return where a C-contiguous array begins, 0 for None: how kernels take lists of arrays."""
    if array is None:
        return 0
    assert array.flags.c_contiguous, "a kernel would read another array"
    return cast(int, array.__array_interface__["data"][0])


def _intrinsic(signature: Any, generate: Callable[..., Any]) -> Any:
    """Return what kernels call for what `generate(context, builder, *arguments)` builds."""

    def lower(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        return generate(context, builder, *arguments)

    if len(signature.args) == 1:
        return intrinsic(lambda typing_context, argument: (signature, lower))
    return intrinsic(lambda typing_context, first, second: (signature, lower))


def _prefetch(write: int) -> Any:
    def generate(context: Any, builder: Any, place: Any) -> Any:
        pointer = builder.inttoptr(place, ir.IntType(8).as_pointer())
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, i32(write), i32(3), i32(1)])
        return context.get_dummy_value()

    return _intrinsic(types.void(types.int64), generate)


def _equal_among_8(context: Any, builder: Any, place: Any, key: Any) -> Any:
    i8, i32, i64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
    vector = ir.VectorType(i64, 8)
    pointer = builder.inttoptr(place, vector.as_pointer())
    undefined = ir.Constant(vector, ir.Undefined)
    one = builder.insert_element(undefined, key, i32(0))
    zeros = ir.Constant(ir.VectorType(i32, 8), [0] * 8)
    keys = builder.shuffle_vector(one, undefined, zeros)
    equal = builder.icmp_signed("==", builder.load(pointer, align=64), keys)
    return builder.zext(builder.bitcast(equal, i8), i64)


def _crc32c_word(context: Any, builder: Any, crc: Any, word: Any) -> Any:
    i64 = ir.IntType(64)
    name, kind = "llvm.x86.sse42.crc32.64.64", ir.FunctionType(i64, [i64, i64])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, [crc, word])


pointer_at: Any = _intrinsic(
    types.voidptr(types.int64),
    lambda context, builder, place: builder.inttoptr(place, context.get_value_type(types.voidptr)),
)
"""Turn an address into a pointer for `numba.carray`."""
bits_of: Any = _intrinsic(
    types.int32(types.float32), lambda _, builder, value: builder.bitcast(value, ir.IntType(32))
)
"""Return the bits of a float32 as int32."""
float_of: Any = _intrinsic(
    types.float32(types.int32), lambda _, builder, bits: builder.bitcast(bits, ir.FloatType())
)
"""Return the float32 that has these int32 bits."""
prefetch: Any = _prefetch(write=0)
"""Ask for the cache line at an address, to read. A wrong address does no harm."""
prefetch_to_write: Any = _prefetch(write=1)
"""Ask for the cache line at an address, to write."""
equal_among_8: Any = _intrinsic(types.int64(types.int64, types.int64), _equal_among_8)
"""Return a bit for each of the 8 int64 at an address (aligned to 64) that equals the key."""
lowest_bit: Any = _intrinsic(
    types.int64(types.int64), lambda _, builder, bits: builder.cttz(bits, ir.IntType(1)(0))
)
"""Return the number of the lowest bit set in an int64; 64 for 0."""
bit_count: Any = _intrinsic(types.int64(types.int64), lambda _, builder, bits: builder.ctpop(bits))
"""Return how many bits of an int64 are set."""
crc32c_word: Any = _intrinsic(types.uint64(types.uint64, types.uint64), _crc32c_word)
"""Continue a CRC-32C by the eight bytes of a uint64. Processors with SSE 4.2 only."""


def c_function(name: str, returns: Any, *arguments: Any) -> Any:
    """Return a function of the C library, for kernels. By name: a pointer could not be cached."""
    return types.ExternalFunction(name, returns(*arguments))
