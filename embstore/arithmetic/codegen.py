"""Compiling a kernel's Python code to machine code that every process can call. This needs Numba.

Numba compiles a kernel. This module adds an **entry**, which Python calls: it checks the arguments,
extracts the values that the kernel needs, releases the GIL, calls the kernel, and makes a Python
object from the kernel's result. Kernel and entry are in one object file, whose only visible symbol
is the entry. A process that runs this code needs LLVM's loader, but not Numba (`loading.py`).

The entry is a `PyCFunctionFast`: `PyObject *entry(ndarray_type, PyObject **arguments, n)`. The
entry reads the public structs of NumPy's C API (`PyArrayObject_fields`, `PyArray_Descr` of NumPy
2), and calls functions of Python's stable ABI. So one object file works with every version of
Python.

An array is accepted if it is C-contiguous, aligned, of the kernel's type and dimensions, and
writable unless the kernel only reads it. Any other argument raises TypeError, because the kernel
would access memory outside the array.

Kernels allocate scratch memory through Numba's runtime. The part of this runtime that kernels need
is reproduced here (`_RUNTIME`), so that an object file refers to the C library alone.
"""

import ctypes
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import njit
from numba import types as numba_types
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import _FunctionCompiler  # type: ignore[attr-defined]
from numba.core.registry import cpu_target
from numba.extending import overload
from numba.np.arrayobj import make_array, populate_array
from numba.np.numpy_support import as_dtype

from embstore.arithmetic.loading import ENTRY
from embstore.arithmetic.parameters import Parameter

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_INLINED = {"forceinline": True, "no_cfunc_wrapper": True, **_OPTIONS}
types: Any = numba_types
_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_POINTER = _I8.as_pointer()
_SWAPPED = ">" if sys.byteorder == "little" else "<"
_HEAD = object.__basicsize__
"""Bytes of a PyObject; its type is its last field."""
_DATA, _NDIM, _SHAPE, _STRIDES, _DESCR, _FLAGS = (_HEAD + n for n in (0, 8, 16, 24, 40, 48))
"""Offsets in PyArrayObject_fields."""
_KIND, _BYTEORDER, _ELSIZE = (_HEAD + n for n in (8, 10, 24))
"""Offsets in PyArray_Descr."""
_TAKEN, _WRITEABLE = 0x1 | 0x100, 0x400
"""NPY_ARRAY_C_CONTIGUOUS and NPY_ARRAY_ALIGNED; NPY_ARRAY_WRITEABLE."""

_RUNTIME = """
declare ptr @malloc(i64)
declare void @free(ptr)
define ptr @NRT_MemInfo_alloc_aligned(i64 %size, i32 %align) {
  %wide = zext i32 %align to i64
  %space = add i64 %size, %wide
  %all = add i64 %space, 64
  %block = call ptr @malloc(i64 %all)
  %none = icmp eq ptr %block, null
  br i1 %none, label %full, label %made
made:
  store i64 1, ptr %block
  %start = ptrtoint ptr %block to i64
  %above = add i64 %start, 63
  %over = add i64 %above, %wide
  %mask = sub i64 0, %wide
  %data = and i64 %over, %mask
  %data.place = getelementptr i8, ptr %block, i64 24
  store i64 %data, ptr %data.place
  %size.place = getelementptr i8, ptr %block, i64 32
  store i64 %size, ptr %size.place
  ret ptr %block
full:
  ret ptr null
}
define void @NRT_MemInfo_call_dtor(ptr %block) {
  call void @free(ptr %block)
  ret void
}
"""
"""The part of Numba's runtime that kernels need. A MemInfo is (number of references, destructor,
argument of the destructor, address of the data, size); here the data follows the MemInfo, from byte
64 on."""


def object_code(function: Callable[..., Any], parameters: list[Parameter]) -> bytes:
    """Compile a kernel for this process's target; return an object file with one symbol, ENTRY."""
    with global_compiler_lock:
        arguments = tuple(map(numba_type, parameters))
        cpu_target.target_context.refresh()  # for new intrinsics and operations
        options = {"nopython": True, **_OPTIONS}
        compiled = _Compiler(function, cpu_target, options, {}, Compiler).compile(arguments, None)
        library = compiled.library
        module = library.create_ir_module("entry")
        _Entry(module, compiled).build(function.__qualname__)
        library.add_ir_module(module)
        library.add_llvm_module(binding.parse_assembly(_RUNTIME))
        library.finalize()
        return bytes(_sealed_off(library._final_module.clone(), library.codegen._tm))


def _sealed_off(module: Any, target: Any) -> Any:
    """Return the object file of a module, in which only the entry can be called from outside. Numba
    may give the same names in two processes. Numba's names also count earlier compilations of the
    process. Therefore the names are replaced, so that the same sources give the same bytes."""
    for kind in (module.functions, module.global_variables):
        for one in list(kind):
            if not one.is_declaration and one.name != ENTRY:
                one.linkage = "internal"
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(
        module, binding.create_pass_builder(target, binding.create_pipeline_tuning_options())
    )
    for number, one in enumerate((*module.functions, *module.global_variables)):
        if not one.is_declaration and one.name != ENTRY:
            one.name = f"part.{number}"
        elif one.is_declaration and not one.name.startswith("llvm."):
            assert hasattr(ctypes.pythonapi, one.name), f"a kernel needs {one.name}"
    return target.emit_object(module)


class _Compiler(_FunctionCompiler):  # type: ignore[misc]
    """Compiles the kernel alone, up to LLVM's intermediate representation."""

    def _customize_flags(self, flags: Any) -> Any:
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        return flags


class _Entry:
    """Builds the entry of one kernel in an LLVM module."""

    def __init__(self, module: Any, compiled: Any) -> None:
        self._module, self._described = module, compiled.fndesc
        self._context = cpu_target.target_context
        kind = ir.FunctionType(_POINTER, [_POINTER, _POINTER.as_pointer(), _I64])
        self._function = ir.Function(module, kind, ENTRY)
        self._builder: Any = ir.IRBuilder(self._function.append_basic_block("entry"))

    def build(self, name: str) -> None:
        """Check and unpack the arguments, call the kernel, and return its result."""
        kinds = self._described.argtypes
        array_type, objects, count = self._function.args
        wrong_count = self._builder.icmp_signed("!=", count, _I64(len(kinds)))
        self._refuse_if(wrong_count, "TypeError", f"{name} takes {len(kinds)} arguments")
        values = []
        for position, kind in enumerate(kinds):
            value = self._builder.load(self._builder.gep(objects, [_I64(position)]))
            of = f"argument {position + 1} of {name}"
            if isinstance(kind, types.Array):
                values.append(self._array(value, kind, array_type, of))
            else:
                values.append(self._scalar(value, kind))
        state = self._call(_POINTER, "PyEval_SaveThread")
        convention = self._context.call_conv
        calls = convention.get_function_type(self._described.restype, kinds)
        callee = ir.Function(self._module, calls, self._described.llvm_func_name)
        status, result = convention.call_function(
            self._builder, callee, self._described.restype, kinds, values, attrs=("noinline",)
        )
        self._call(ir.VoidType(), "PyEval_RestoreThread", state)
        self._refuse_if(status.is_error, "MemoryError", f"no memory for what {name} computes with")
        self._builder.ret(self._boxed(result, self._described.restype))

    def _call(self, returns: Any, name: str, *arguments: Any) -> Any:
        """Call a C function of Python."""
        function = self._module.globals.get(name) or ir.Function(
            self._module, ir.FunctionType(returns, [a.type for a in arguments]), name
        )
        return self._builder.call(function, arguments)

    def _refuse_if(self, condition: Any, error: str, text: str) -> None:
        with self._builder.if_then(condition, likely=False):
            kind = self._object(f"PyExc_{error}", _POINTER)
            message = self._context.insert_const_string(self._module, text)
            self._call(ir.VoidType(), "PyErr_SetString", self._builder.load(kind), message)
            self._builder.ret(_POINTER(None))

    def _object(self, name: str, kind: Any) -> Any:
        """Return the address of a C variable of Python."""
        return self._module.globals.get(name) or ir.GlobalVariable(self._module, kind, name)

    def _field(self, start: Any, offset: int, kind: Any) -> Any:
        place = self._builder.gep(start, [_I64(offset)])
        return self._builder.load(self._builder.bitcast(place, kind.as_pointer()))

    def _all(self, conditions: list[Any]) -> Any:
        return reduce(self._builder.and_, conditions)

    def _scalar(self, value: Any, kind: Any) -> Any:
        """Return a Python number as the kernel's parameter type."""
        builder = self._builder
        if kind is types.boolean:
            found = self._call(_I32, "PyObject_IsTrue", value)
            self._return_if_failed(builder.icmp_signed("==", found, _I32(-1)))
            return builder.icmp_signed("!=", found, _I32(0))
        if kind is types.float32:
            found = self._call(ir.DoubleType(), "PyFloat_AsDouble", value)
            self._return_if_failed(builder.fcmp_ordered("==", found, ir.DoubleType()(-1.0)))
            return builder.fptrunc(found, ir.FloatType())
        assert kind is types.int64, kind
        found = self._call(_I64, "PyLong_AsLongLong", value)
        self._return_if_failed(builder.icmp_signed("==", found, _I64(-1)))
        return found

    def _return_if_failed(self, may_have_failed: Any) -> None:
        with self._builder.if_then(may_have_failed, likely=False):
            error = self._call(_POINTER, "PyErr_Occurred")
            is_set = self._builder.icmp_unsigned("!=", error, _POINTER(None))
            with self._builder.if_then(is_set):
                self._builder.ret(_POINTER(None))

    def _array(self, value: Any, kind: Any, array_type: Any, of: str) -> Any:
        """Return an array as the kernel's parameter type. The caller keeps its reference to the
        array."""
        builder, dtype = self._builder, as_dtype(kind.dtype)
        wanted = f"C-contiguous {dtype.name} of {kind.ndim} dimensions"
        text = f"expected {of} to be an array, {wanted}{'' if not kind.mutable else ', writable'}"
        own = self._field(value, _HEAD - 8, _POINTER)
        is_array = builder.icmp_unsigned("==", own, array_type)
        with builder.if_then(builder.not_(is_array), likely=False):
            derived = self._call(_I32, "PyType_IsSubtype", own, array_type)
            self._refuse_if(builder.icmp_signed("==", derived, _I32(0)), "TypeError", text)
        flags = _TAKEN | (_WRITEABLE if kind.mutable else 0)
        described = self._field(value, _DESCR, _POINTER)
        found_flags = builder.and_(self._field(value, _FLAGS, _I32), _I32(flags))
        equal = [
            (found_flags, _I32(flags)),
            (self._field(value, _NDIM, _I32), _I32(kind.ndim)),
            (self._field(described, _KIND, _I8), _I8(ord(dtype.kind))),
            (self._field(described, _ELSIZE, _I64), _I64(dtype.itemsize)),
        ]
        fits = self._all([builder.icmp_signed("==", found, wanted) for found, wanted in equal])
        swapped = self._field(described, _BYTEORDER, _I8)
        fits = builder.and_(fits, builder.icmp_signed("!=", swapped, _I8(ord(_SWAPPED))))
        self._refuse_if(builder.not_(fits), "TypeError", text)
        array = make_array(kind)(self._context, builder)  # type: ignore[no-untyped-call]
        populate_array(  # type: ignore[no-untyped-call]
            array,
            data=builder.bitcast(self._field(value, _DATA, _POINTER), array.data.type),
            shape=self._numbers(value, _SHAPE, kind.ndim),
            strides=self._numbers(value, _STRIDES, kind.ndim),
            itemsize=_I64(dtype.itemsize),
            meminfo=None,
        )
        return array._getvalue()

    def _numbers(self, value: Any, offset: int, count: int) -> list[Any]:
        numbers = self._field(value, offset, _I64.as_pointer())
        return [self._builder.load(self._builder.gep(numbers, [_I64(n)])) for n in range(count)]

    def _boxed(self, result: Any, kind: Any) -> Any:
        """Return the kernel's result as a new object: None, a bool, an int, or a tuple."""
        builder = self._builder
        if kind is types.none:
            nothing = self._object("_Py_NoneStruct", _I8)
            self._call(ir.VoidType(), "Py_IncRef", nothing)
            return nothing
        if isinstance(kind, types.BaseTuple):
            made = self._call(_POINTER, "PyTuple_New", _I64(len(kind)))
            for place, item_kind in enumerate(kind):
                item = self._boxed(builder.extract_value(result, place), item_kind)
                self._call(_I32, "PyTuple_SetItem", made, _I64(place), item)
            return made
        if kind is types.boolean:
            return self._call(_POINTER, "PyBool_FromLong", builder.zext(result, _I64))
        assert isinstance(kind, types.Integer) and kind.bitwidth == 64, kind
        makes = "PyLong_FromLongLong" if kind.signed else "PyLong_FromUnsignedLongLong"
        return self._call(_POINTER, makes, result)


def numba_type(parameter: Parameter) -> Any:
    """Return Numba's type of a parameter."""
    kind = numba.from_dtype(np.dtype(parameter.dtype))
    if not parameter.dimensions:
        return kind
    return types.Array(kind, parameter.dimensions, "C", readonly=parameter.readonly)


def dispatcher(function: Callable[..., Any]) -> Any:
    """Return a building block as a Numba function, which is inlined in kernels. If Python calls the
    function, it is compiled at once."""
    return njit(**_INLINED)(function)


def register(generic: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Make kernels compile and inline `function` in place of `generic`."""
    options: Any = {"forceinline": True, **_OPTIONS}
    overload(generic, jit_options=options, strict=False)(lambda *types: function)


def type_of(value: Any) -> Any:
    """Return Numba's type of a global variable of a kernel."""
    cpu_target.typing_context.refresh()
    return cpu_target.typing_context.resolve_value_type(value)


def external(name: str, returns: str, *arguments: str) -> Any:
    """Return a function of the C library, bound by name, since a pointer is valid in one process
    only."""
    kinds = [getattr(types, kind) for kind in arguments]
    return types.ExternalFunction(name, getattr(types, returns)(*kinds))
