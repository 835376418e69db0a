"""Machine code from an object file, called from Python: LLVM's loader, without a compiler.

An object file of a kernel (`codegen.py`) has one symbol, ENTRY, which is a C function with the
calling convention of METH_FASTCALL. It becomes a built-in function of Python, like the functions of
a C extension. LLVM relocates the code, and finds the functions of Python and of the C library in
this process. Loaded code stays in memory until the process ends.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding  # type: ignore[import-untyped]

ENTRY = "embstore_entry"

_METH_FASTCALL = 0x80


class _MethodDef(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_kept: list[Any] = []
"""The objects that built-in functions need: their definitions, and the engines that own their
code."""


def load(name: str, code: bytes) -> Callable[..., Any]:
    """Return the kernel of an object file as a function. One thread at a time calls this."""
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _target_machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(ENTRY)
    definition = _MethodDef(name.encode(), address, _METH_FASTCALL, None)
    _kept.append((definition, engine))
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    make.restype = ctypes.py_object
    function: Callable[..., Any] = make(ctypes.addressof(definition), np.ndarray, None)
    return function


@cache
def _initialized() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple()


def _target_machine() -> Any:
    return _initialized().create_target_machine(jit=True)  # an engine owns it afterwards
