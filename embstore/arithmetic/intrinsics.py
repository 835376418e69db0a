"""LLVM's operations for kernels: implementations of the names in `jit.py`, for Numba."""

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from embstore.arithmetic.blake2b import COUNTED, LANES, LAST, ROUNDS, START, STATE, WORDS


def _intrinsic(signature: Any, generate: Callable[..., Any]) -> Any:
    """Return a function for kernels. `generate(context, builder, *arguments)` builds its code."""

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


def _blake2b_compress(context: Any, builder: Any, place: Any) -> Any:
    i64 = ir.IntType(64)
    vector = ir.VectorType(i64, LANES)
    pointer = builder.inttoptr(place, vector.as_pointer())

    def row(number: int) -> Any:
        return builder.gep(pointer, [i64(number)])

    def load(rows: range) -> list[Any]:
        return [builder.load(row(number), align=8) for number in rows]

    def same(value: int) -> Any:
        return ir.Constant(vector, [value] * LANES)

    def rotated(value: Any, by: int) -> Any:
        return builder.or_(builder.lshr(value, same(by)), builder.shl(value, same(64 - by)))

    before, words = load(STATE), load(WORDS)
    v = before + [same(word) for word in START]
    counted, last = load(range(COUNTED, LAST + 1))
    v[12], v[14] = builder.xor(v[12], counted), builder.xor(v[14], last)
    for order in ROUNDS:
        for step in range(8):
            turn, column = divmod(step, 4)
            a, b, c, d = (4 * r + (column + turn * r) % 4 for r in range(4))
            for half, (first, second) in enumerate(((32, 24), (16, 63))):
                v[a] = builder.add(builder.add(v[a], v[b]), words[order[2 * step + half]])
                v[d] = rotated(builder.xor(v[d], v[a]), first)
                v[c] = builder.add(v[c], v[d])
                v[b] = rotated(builder.xor(v[b], v[c]), second)
    for number in STATE:
        after = builder.xor(v[number], v[number + 8])
        builder.store(builder.xor(before[number], after), row(number), align=8)
    return context.get_dummy_value()


pointer_at: Any = _intrinsic(
    types.voidptr(types.int64),
    lambda context, builder, place: builder.inttoptr(place, context.get_value_type(types.voidptr)),
)
bits_of: Any = _intrinsic(
    types.int32(types.float32), lambda _, builder, value: builder.bitcast(value, ir.IntType(32))
)
float_of: Any = _intrinsic(
    types.float32(types.int32), lambda _, builder, bits: builder.bitcast(bits, ir.FloatType())
)
prefetch: Any = _prefetch(write=0)
prefetch_to_write: Any = _prefetch(write=1)
equal_among_8: Any = _intrinsic(types.int64(types.int64, types.int64), _equal_among_8)
lowest_bit: Any = _intrinsic(
    types.int64(types.int64), lambda _, builder, bits: builder.cttz(bits, ir.IntType(1)(0))
)
bit_count: Any = _intrinsic(types.int64(types.int64), lambda _, builder, bits: builder.ctpop(bits))
crc32c_word: Any = _intrinsic(types.uint64(types.uint64, types.uint64), _crc32c_word)
blake2b_compress: Any = _intrinsic(types.void(types.int64), _blake2b_compress)

carray: Any = numba.carray  # type: ignore[attr-defined]  # public, but not to mypy
