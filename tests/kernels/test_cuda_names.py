"""What `cuda.py`, and the client's `cupy_gpu.py`, take CuPy to be, checked where CuPy is installed;
no device is needed.

Names and parameters are read from their syntax trees. CuPy's compiled functions have no
signature that `inspect` can read, but their docstrings begin with one.
"""

import ast
import inspect
import re
from functools import reduce
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from embstore.arrays import device_address
from embstore.device.runtime import Runtime
from embstore.errors import CapacityError, DeviceError, InvalidArgumentError
from embstore.kernels.sources import OPTIONS

cupy = pytest.importorskip("cupy", reason="needs CuPy (a device is not needed)")

from cupy.cuda import compiler, function  # noqa: E402

from embstore.device import cuda as module  # noqa: E402
from embstore_client import cupy_gpu  # noqa: E402
from embstore_proto.device_segment import Handles  # noqa: E402

NODES = [
    node
    for tree in (ast.parse(Path(m.__file__).read_text()) for m in (module, cupy_gpu))
    for node in ast.walk(tree)
]
ALIASES = {"cupy", "compiler", "cuda", "function"}
MEMBERS = [
    (cupy.cuda.Event, ["record", "synchronize"]),
    (cupy.cuda.Stream, ["__enter__", "__exit__", "synchronize", "wait_event"]),
    (cupy.cuda.Stream.null, ["device_id", "ptr"]),
    (cupy.cuda.Module, ["get_function", "load"]),
    (cupy.cuda.Memory, ["ptr"]),
    (cupy.cuda.MemoryPointer, ["ptr"]),
    (cupy.cuda.PinnedMemoryPointer, ["mem"]),
    (cupy.cuda.runtime.PointerAttributes, ["device", "type"]),
    (cupy.cuda.runtime.CUDARuntimeError(2), ["status"]),
]
"""Of objects that CuPy gives `cuda.py`: the tree does not tell their types."""


def chain(node):
    """Return ["cupy", "cuda", "Event"] of cupy.cuda.Event; [] of what is no name of CuPy."""
    names = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) and node.id in ALIASES else []


def resolve(names):
    return reduce(getattr, names[1:], getattr(module, names[0]))


def parameters(callee):
    """Return the names of a callable's parameters, in order; None where nothing tells them."""
    try:
        found = list(inspect.signature(callee).parameters.values())
    except ValueError:
        found = []
    if found and all(p.kind is not p.VAR_POSITIONAL for p in found):
        return [parameter.name for parameter in found if parameter.name != "self"]
    head = re.match(r"[\w.]+\((.*?)\)(?:\s|$)", callee.__doc__ or "")
    if head is None:
        return None
    declared = (part.partition("=")[0].split()[-1] for part in head[1].split(",") if part.strip())
    return [name for name in declared if name not in ("self", "/", "*")]


CALLS = [node for node in NODES if isinstance(node, ast.Call) and chain(node.func)]
NAMES = {".".join(chain(n)) for n in NODES if isinstance(n, ast.Attribute) and chain(n)}


def test_every_name_of_cupy_exists():
    missing = []
    for name in sorted(NAMES):
        try:
            resolve(name.split("."))
        except AttributeError as exc:
            missing.append(f"{name}: {exc}")
    assert len(NAMES) > 25
    assert not missing, "\n".join(missing)


def test_every_member_of_an_object_of_cupy_exists():
    missing = [(of, name) for of, names in MEMBERS for name in names if not hasattr(of, name)]
    assert not missing


def test_arguments_of_calls_of_cupy_have_parameters():
    wrong, checked = [], 0
    for call in CALLS:
        taken = parameters(resolve(chain(call.func)))
        if taken is None:
            continue
        checked += 1
        given = [keyword.arg for keyword in call.keywords]
        free = [name for name in taken if name not in given]
        if len(call.args) > len(free) or set(given) - set(taken):
            wrong.append(f"line {call.lineno}: {ast.unparse(call)} to {taken}")
    assert checked >= 15
    assert not wrong, "\n".join(wrong)


def test_a_launch_takes_the_stream_by_keyword():
    class AskedError(Exception):
        pass

    class Stream:
        @property
        def ptr(self):
            raise AskedError

    launch = cupy.cuda.Function.__new__(cupy.cuda.Function)  # of no kernel
    with pytest.raises(AskedError):
        launch((1,), (256,), [], stream=Stream())


@pytest.mark.skipif(module.device_count() > 0, reason="would launch a kernel that is none")
def test_a_launch_takes_addresses_and_numpy_scalars():
    launch = cupy.cuda.Function.__new__(cupy.cuda.Function)
    arguments = [function.CIntptr(1 << 40)]
    arguments += [t(1) for t in (np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64)]
    arguments.append(np.float32(0.5))
    stream = SimpleNamespace(ptr=0)
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError):  # all converted: the driver's turn
        launch((1,), (256,), arguments, stream=stream)
    with pytest.raises(TypeError, match="Unsupported type"):
        launch((1,), (256,), [*arguments, object()], stream=stream)


def test_what_compiles_is_given_our_options_last(monkeypatch):
    """RawModule appends -ftz=true, and the last one counts; the compiler under it must not."""
    given = []

    class Program:
        def __init__(self, *args, **kwargs):
            pass

        def compile(self, options, log_stream):
            given.extend(options)
            return b"binary", None

    monkeypatch.setattr(compiler, "_NVRTCProgram", Program)
    monkeypatch.setattr(
        compiler, "_get_arch_for_options_for_nvrtc", lambda arch=None: ("-arch=sm_90", "cubin")
    )
    monkeypatch.setattr(compiler, "_get_nvrtc_version", lambda: (12, 9))
    assert module._compiled.__wrapped__("gather", 0) == b"binary"
    assert tuple(given[: len(OPTIONS)]) == OPTIONS
    added = " ".join(given[len(OPTIONS) :])
    assert "-arch=sm_90" in added
    assert not re.search(r"ftz|fmad|prec-|fast.math|std=", added)


# Without a device


def plain_runtime(ordinal=1):
    """Return a runtime that has not been opened."""
    runtime = module.CudaRuntime.__new__(module.CudaRuntime)
    runtime.ordinal, runtime.name, runtime.is_lost = ordinal, f"cuda:{ordinal}", False
    return runtime


class Current:
    """The current device of a thread, as CUDA keeps it."""

    def __init__(self, monkeypatch):
        self.device = 0
        monkeypatch.setattr(module.cuda, "getDevice", lambda: self.device)
        monkeypatch.setattr(module.cuda, "setDevice", self.set)

    def set(self, device):
        self.device = device


@pytest.fixture
def current(monkeypatch):
    names = {name: getattr(module.cuda, name) for name in dir(module.cuda)}
    monkeypatch.setattr(module, "cuda", SimpleNamespace(**names))
    return Current(monkeypatch)


def cuda_error(status):
    return cupy.cuda.runtime.CUDARuntimeError(status)


def test_a_device_that_is_not_there_is_refused():
    count = module.device_count()
    for ordinal in (-1, count, count + 7):
        with pytest.raises(InvalidArgumentError, match=f"cuda:{ordinal}.*: {count}$"):
            module.open_runtime(ordinal)


def test_a_call_runs_on_its_device_and_puts_back_the_callers(current):
    runtime, seen = plain_runtime(), []
    call = module._on_device(lambda self: seen.append(current.device))
    call(runtime)
    assert (seen, current.device) == ([1], 0)
    current.set(1)
    call(runtime)
    assert (seen, current.device) == ([1, 1], 1)


@pytest.mark.parametrize(
    "status, error, message, is_lost",
    [
        (700, DeviceError, r"cuda:1: launch: cudaErrorIllegalAddress.*resta", True),
        (900, InvalidArgumentError, r"cuda:1: launch: .*capturing; call the store out", False),
    ],
)
def test_an_error_of_cuda_is_the_devices_unless_somebody_captures(
    current, status, error, message, is_lost
):
    def launch(self, mark):
        raise cuda_error(status)

    runtime = plain_runtime()
    with pytest.raises(error, match=message):
        module._on_device(launch)(runtime, object())
    assert runtime.is_lost == is_lost
    assert current.device == 0


@pytest.mark.parametrize("captured", [7, 9])
def test_arrays_of_a_stream_that_is_captured_are_refused(current, monkeypatch, captured):
    monkeypatch.setattr(module.cuda, "streamIsCapturing", lambda stream: stream == captured)
    runtime = plain_runtime()
    runtime.compute_stream = 9
    monkeypatch.setattr(runtime, "_check_place", lambda address: None)
    monkeypatch.setattr(runtime, "_follow_callers", lambda stream: None)
    array = SimpleNamespace(__cuda_array_interface__=interface(stream=7))
    with pytest.raises(InvalidArgumentError, match="being captured; call the store outside"):
        runtime.adopt(array, np.float32)
    monkeypatch.setattr(module.cuda, "streamIsCapturing", lambda stream: False)
    assert len(runtime.adopt(array, np.float32)) == 3
    assert not runtime.is_lost


@pytest.mark.parametrize("byte_count", [0, 1 << 60])
def test_no_memory_is_a_capacity_error_that_tells_the_bytes(current, monkeypatch, byte_count):
    def refuse(size):
        raise cuda_error(2)

    monkeypatch.setattr(module.cuda, "memGetInfo", lambda: (5, 7), raising=False)
    monkeypatch.setattr(module.cupy.cuda, "Memory", refuse)
    runtime = plain_runtime()
    wanted = max(byte_count, 1)
    with pytest.raises(CapacityError, match=f"cuda:1: expected {wanted} bytes.* 5 .* 7: give"):
        runtime.allocate(byte_count, np.uint8)
    assert not runtime.is_lost
    assert current.device == 0


@pytest.mark.parametrize("status", [1, 205, 801])
def test_memory_that_cuda_does_not_export_is_a_capacity_error_and_no_loss(
    current, monkeypatch, status
):
    def refuse(address):
        raise cuda_error(status)

    event = SimpleNamespace(ptr=5)
    monkeypatch.setattr(module.cupy.cuda, "Event", lambda **flags: event)
    monkeypatch.setattr(module.cuda, "deviceGetPCIBusId", lambda ordinal: "0000:01:00.0")
    monkeypatch.setattr(module.cuda, "ipcGetMemHandle", refuse)
    runtime = plain_runtime()
    with pytest.raises(CapacityError, match="cuda:1: expected memory that another process"):
        runtime.export(SimpleNamespace(address=4096))
    assert not runtime.is_lost


def test_an_event_is_reached_not_yet_or_the_device_is_lost(current, monkeypatch):
    status = 0
    monkeypatch.setattr(module.cuda, "eventQuery", lambda event: status)
    runtime, event = plain_runtime(), SimpleNamespace(ptr=5)
    assert runtime.is_reached(event) is True
    status = 600
    assert runtime.is_reached(event) is False
    status = 700
    with pytest.raises(DeviceError, match="cudaErrorIllegalAddress"):
        runtime.is_reached(event)
    assert runtime.is_lost


def test_a_gpu_that_a_client_does_not_see_is_refused(monkeypatch):
    def refuse(address):
        raise cuda_error(101)

    names = {name: getattr(cupy_gpu.cuda, name) for name in dir(cupy_gpu.cuda)}
    names["deviceGetByPCIBusId"] = refuse
    monkeypatch.setattr(cupy_gpu, "cuda", SimpleNamespace(**names))
    handles = Handles(2 << 20, bytes(64), bytes(64), "0000:01:00.0")
    with pytest.raises(InvalidArgumentError, match=r"GPU 0000:01:00\.0.*CUDA_VISIBLE_DEVICES"):
        cupy_gpu.CupyGpu().open(handles)


def test_pinned_memory_lives_as_long_as_a_view_of_it():
    behind = np.arange(100, dtype=np.uint8)

    class Memory(module._Pinned):
        def __init__(self):
            self.ptr, self.size = behind.ctypes.data, behind.nbytes

        def __del__(self):
            ended.append(True)

    ended = []
    array = np.frombuffer(cupy.cuda.PinnedMemoryPointer(Memory(), 0), np.uint8, count=64)
    view = array[8:24].view(np.int64)
    assert module._is_pinned(array) and module._is_pinned(view)
    assert not module._is_pinned(behind)
    del array
    assert not ended
    assert view.tobytes() == behind[8:24].tobytes()
    view[0] = 0
    assert not behind[8:16].any()
    del view
    assert ended == [True]


def interface(**other):
    found = {"shape": (3, 4), "typestr": "<f4", "data": (4096, False), "version": 3}
    return found | other


@pytest.mark.parametrize(
    "found",
    [
        interface(),
        interface(strides=None),
        interface(strides=(16, 4)),
        interface(shape=(1, 4), strides=(999, 4)),
        interface(shape=(3,), strides=(4,)),
        interface(shape=(0, 4), strides=(0, 0)),
    ],
)
def test_contiguous_arrays_of_callers_are_taken(found):
    assert device_address(found, np.dtype(np.float32)) == 4096


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (interface(typestr="<f8"), "float32.*float64"),
        (interface(mask=object()), "mask"),
        (interface(shape=()), "dimensions"),
        (interface(shape=(1, 2, 3)), "dimensions"),
        (interface(strides=(32, 4)), "contiguous"),
        (interface(strides=(4, 12)), "contiguous"),
        (interface(shape=(3,), strides=(8,)), "contiguous"),
    ],
)
def test_other_arrays_of_callers_are_refused(found, why):
    with pytest.raises(InvalidArgumentError, match=why):
        device_address(found, np.dtype(np.float32))


def test_the_runtime_has_the_protocols_methods_and_parameters():
    for name, wanted in vars(Runtime).items():
        if name.startswith("_") or not callable(wanted):
            continue
        assert inspect.signature(getattr(module.CudaRuntime, name)) == inspect.signature(wanted)
