"""CUDA sources to functions of this process: built by g++ behind the shim, called by ctypes.

A source becomes a library of its own, kept in a folder of the system's temporary one under a hash
of all that makes it: a change builds it again, and processes that race build the same file, which
comes to its name whole. What a kernel's parameters are is read from its source, so that a launch
with other arguments than it declares is refused, by the parameter's name.
"""

import ctypes
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from embstore.device.runtime import DeviceArray
from embstore.layout import ELEMENT_BYTES

COMPILER = "g++"
FLAGS = (
    "-O2",
    "-std=c++17",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fsanitize=alignment,null,bounds",
    "-fsanitize=shift-exponent,signed-integer-overflow,integer-divide-by-zero",
    "-w",
    *(["-march=x86-64", "-msse2"] if platform.machine() == "x86_64" else []),
)
COUNTING_FLAGS = ("-O2", "-std=c++17", "-fPIC", "-fvisibility=hidden")
"""Of bytes.cpp, which a build that counts has beside it."""
COMPILE_SECONDS_MAX = 600

WAITING = re.compile(r"__sync(?:threads|warp)\b|__shfl\w*|__ballot\w*|__nanosleep\b")
"""What a plain loop over a block's threads cannot do."""

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DIRECTIVE = re.compile(r"^\s*#(?:[^\n\\]|\\.)*", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"(\w+)\s*\(([^()]*)\)\s*$")
_KERNEL = re.compile(r'extern\s+"C"\s+__global__\b')
_SCALARS = {
    "float": np.float32,
    "int": np.int32,
    "int32": np.int32,
    "uint32": np.uint32,
    "int64": np.int64,
    "uint64": np.uint64,
}
_POINTEE_BYTES = {
    **{name: np.dtype(scalar).itemsize for name, scalar in _SCALARS.items()},
    "uint8": 1,
    "signed char": 1,
    "element": ELEMENT_BYTES,
    "float4": 4,
    "int4": 4,
    "uint4": 4,
    "longlong2": 8,
}
"""Of an array's element; a vector is as many elements as it has components."""


class KernelError(AssertionError):
    """A kernel did what no kernel may: the message says where."""


@dataclass(frozen=True)
class Parameter:
    """Of a kernel: a scalar of `dtype`, or the address of elements of `item_bytes`."""

    name: str
    dtype: np.dtype | None
    item_bytes: int

    def word(self, argument: Any) -> tuple[int, int]:
        """Return an argument as 64 bits, and how many bytes must be where it points.

        Raises
        ------
        TypeError : it is of another kind.
        """
        if self.dtype is not None:
            if getattr(argument, "dtype", None) != self.dtype or np.ndim(argument):
                raise TypeError(f"{self.dtype}, found {_kind(argument)}")
            return int.from_bytes(argument.tobytes(), "little"), 0
        if isinstance(argument, np.uint64):  # an address, or none
            return int(argument), int(argument != 0)
        if not isinstance(argument, DeviceArray):
            raise TypeError(f"an array, found {_kind(argument)}")
        if argument.dtype.itemsize != self.item_bytes:
            raise TypeError(f"of {self.item_bytes}-byte elements, found {_kind(argument)}")
        return argument.address, argument.nbytes


def _kind(argument: Any) -> str:
    if isinstance(argument, DeviceArray):
        return f"({len(argument)}, {argument.width}) {argument.dtype}"
    return str(getattr(argument, "dtype", type(argument).__name__))


@dataclass(frozen=True)
class Declaration:
    """What the source says of a kernel. It waits where it, or what it calls, has a barrier."""

    name: str
    parameters: tuple[Parameter, ...]
    waits: bool


class Kernel:
    """A kernel that was built."""

    def __init__(self, declaration: Declaration, library: ctypes.PyDLL) -> None:
        self.name = declaration.name
        self.parameters = declaration.parameters
        self.waits = declaration.waits
        self.library = library
        self.address = ctypes.addressof(ctypes.c_char.in_dll(library, f"kernel_{self.name}"))


class _Launch(ctypes.Structure):
    """As fibers.h has it; the rest of its fields is its own."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("blocks", ctypes.c_uint),
        ("own", ctypes.c_uint * 2),
        ("next", ctypes.c_ulonglong),
    )


class Launch(NamedTuple):
    """Blocks of a kernel, with one 64-bit word for each of its parameters."""

    kernel: Kernel
    blocks: int
    words: list[int]


def run(*launches: Launch, seed: int = 0, fibers: bool = False, resident_blocks: int = 1) -> None:
    """Run launches of kernels of one source at the same time.

    They run in fibers where one of them waits, where told, and where more than one block may be
    resident: so many of all launches together.

    Raises
    ------
    KernelError : one went wrong, and all stopped at once.
    """
    library = launches[0].kernel.library
    described, kept = (_Launch * len(launches))(), []
    for each, (kernel, blocks, words) in zip(described, launches, strict=True):
        assert kernel.library is library, f"{kernel.name} is of another source"
        assert 0 < blocks < 2**31, f"{kernel.name}: {blocks} blocks"
        assert len(words) == len(kernel.parameters)
        kept.append((ctypes.c_uint64 * len(words))(*words))
        each.kernel, each.arguments = kernel.address, ctypes.addressof(kept[-1])
        each.blocks = blocks
    is_plain = resident_blocks == 1 and not fibers and not any(x.kernel.waits for x in launches)
    resident = 0 if is_plain else resident_blocks
    failed = library.shim_launch(described, len(launches), seed, resident)
    if failed:
        names = " and ".join(x.kernel.name for x in launches)
        raise KernelError(f"{names}: {failed.decode()}")


class Bytes(NamedTuple):
    """What a launch moved: bytes as its threads asked for them, and 32 for each sector of memory
    that one of them touched, however often."""

    loaded: int
    stored: int
    loaded_sectors: int
    stored_sectors: int


def run_and_count(launch: Launch, memory: list[tuple[int, int]], **how: Any) -> Bytes:
    """Run a launch of a counting build; `memory` is begin and end of what counts, ascending."""
    library = launch.kernel.library
    ranges = np.array(memory, np.uint64)
    library.shim_count(ctypes.c_void_p(ranges.ctypes.data), ctypes.c_uint64(len(memory)))
    run(launch, **how)
    out = (ctypes.c_uint64 * len(Bytes._fields))()
    library.shim_counted(out)
    return Bytes(*out)


@cache
def build(source: str, *, counting: bool = False) -> dict[str, Kernel]:
    """Return the kernels of a source, by name; once a process, since every store asks for them.

    Raises
    ------
    KernelError : the compiler refuses it.
    """
    declared = declarations(source)
    library = _load(_text(source, declared), counting)
    return {d.name: Kernel(d, library) for d in declared}


def declarations(source: str) -> list[Declaration]:
    """Return what a source says of its kernels, in its order."""
    functions, rest = _functions(_COMMENT.sub(" ", source))
    waiting = {name for name, (_, body) in functions.items() if WAITING.search(body)}
    for _ in functions:  # each turn finds the callers of the last, or none is left
        names = "|".join(waiting) or "(?!)"
        calls = re.compile(rf"\b(?:{names})\b")
        found = {name for name, (_, body) in functions.items() if calls.search(body)} - waiting
        if not found:
            break
        waiting |= found
    all_wait = WAITING.search(rest) is not None  # a macro, or what this does not understand
    return [
        Declaration(name, _parameters(name, _FUNCTION.search(head)[2]), all_wait or name in waiting)
        for name, (head, _) in functions.items()
        if _KERNEL.search(head)
    ]


def _functions(text: str) -> tuple[dict[str, tuple[str, str]], str]:
    """Return name -> (head, body) of the functions at file level, and all that is none of them."""
    functions, rest = {}, _DIRECTIVE.findall(text)
    text = _DIRECTIVE.sub("", text)
    begin = depth = brace = 0
    for match in re.finditer(r"[{}]", text):
        if match[0] == "{":
            if depth == 0:
                brace = match.start()
            depth += 1
            continue
        depth -= 1
        if depth == 0:
            head, body = text[begin:brace].rpartition(";")[2], text[brace : match.end()]
            function = _FUNCTION.search(head)
            if function:
                functions[function[1]] = (head, body)
            rest.append(head if function else head + body)
            begin = match.end()
    return functions, " ".join([*rest, text[begin:]])


def _parameters(kernel: str, text: str) -> tuple[Parameter, ...]:
    return tuple(_parameter(kernel, part) for part in text.split(",") if part.strip())


def _parameter(kernel: str, text: str) -> Parameter:
    words = re.findall(r"\w+|\*", text)
    name = words.pop()
    type_name = " ".join(w for w in words if w not in ("const", "volatile", "__restrict__", "*"))
    known = _POINTEE_BYTES if "*" in words else _SCALARS
    if type_name not in known or words.count("*") > 1:
        raise KernelError(f"{kernel}: parameter {name}: no kernel takes {' '.join(text.split())}")
    if "*" in words:
        return Parameter(name, None, _POINTEE_BYTES[type_name])
    dtype = np.dtype(_SCALARS[type_name])
    return Parameter(name, dtype, dtype.itemsize)


def _text(source: str, declared: list[Declaration]) -> str:
    kernels = "\n".join(f"SHIM_KERNEL({d.name})" for d in declared)
    parts = {
        name: Path(__file__).with_name(name).read_text(encoding="utf-8")
        for name in ("fibers.h", "cuda_shim.h")
    }
    parts |= {"source": source, "kernels": kernels}
    return "\n".join(f'#line 1 "{name}"\n{part}' for name, part in parts.items())


def _load(text: str, counting: bool) -> ctypes.PyDLL:
    flags = (*FLAGS, "-fsanitize=thread") if counting else FLAGS
    beside = Path(__file__).with_name("bytes.cpp").read_text(encoding="utf-8") if counting else ""
    parts = [_compiler_version(), *flags, text, beside]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    path = _cache_folder() / f"{key}.so"
    if not path.exists():
        _compile(path, {text: flags} | ({beside: COUNTING_FLAGS} if counting else {}))
    # PyDLL keeps the interpreter's lock: a library's state is for one thread at a time.
    library = ctypes.PyDLL(str(path))
    library.shim_launch.restype = ctypes.c_char_p
    library.shim_launch.argtypes = (ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint64, ctypes.c_uint)
    return library


def _compile(path: Path, texts: dict[str, tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made, linked = [], Path(folder, "kernels.so")
        # In two steps: one that knows of -fsanitize would link its own runtime.
        for text, flags in texts.items():
            made.append(str(Path(folder, f"{len(made)}.o")))
            _run([COMPILER, *flags, "-x", "c++", "-c", "-o", made[-1], "-"], text)
        _run([COMPILER, "-shared", "-o", str(linked), *made], "")
        os.replace(linked, path)


def _run(command: list[str], text: str) -> None:
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=COMPILE_SECONDS_MAX
    )
    if done.returncode:
        raise KernelError(f"{COMPILER} refuses the source:\n{done.stderr}")


@cache
def _compiler_version() -> str:
    if shutil.which(COMPILER) is None:
        raise FileNotFoundError(f"the emulation needs {COMPILER}")
    return subprocess.run(
        [COMPILER, "--version"], capture_output=True, text=True, check=True, timeout=600
    ).stdout


@cache
def _cache_folder() -> Path:
    """Return a folder that nobody else may write: what lies in it is run."""
    folder = Path(tempfile.gettempdir(), f"embstore-emulation-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    assert stat.S_ISDIR(found.st_mode), f"{folder} is no folder"
    assert found.st_uid == os.getuid() and not found.st_mode & 0o022, f"others may write {folder}"
    return folder
