"""The installed software: versions, the packages of extras, CuPy and the driver of a GPU."""

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from embstore.device.gpu_memory import RESERVE_BYTES
from embstore.version import pip_install
from embstore_server.doctor.findings import Finding, System, ok, warn
from embstore_server.setup.parsing import bytes_text
from embstore_server.telemetry import tracing

_PACKAGES = ("embstore", "numpy", "numba", "grpcio", "protobuf", "fastapi", "uvicorn")
_CUPY = ("cupy-cuda12x", "cupy-cuda13x", "cupy")
_USED_SHARE = 0.1
"""The share of a GPU's memory that a display and contexts normally use."""


def looked_at(system: System) -> Iterator[Finding]:
    """Yield the findings for the installed software."""
    yield of_versions({name: found for name in _PACKAGES if (found := version_of(name))})
    yield from of_traces(os.environ, {name: version_of(name) for name in tracing.PACKAGES})
    cupy = {name: found for name in _CUPY if (found := version_of(name))}
    yield of_gpu(system, cupy, _devices)
    if has_gpu(system) and len(cupy) == 1:
        yield of_gpu_memory(_memory)


def version_of(package: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def of_versions(found: dict[str, str]) -> Finding:
    """Judge which packages are installed."""
    python = f"Python {platform.python_version()}, Linux {platform.release()}"
    text = ", ".join([python, *(f"{name} {number}" for name, number in found.items())])
    missing = [name for name in ("numba", "fastapi", "uvicorn") if name not in found]
    if not missing:
        return ok("versions", text)
    change = f"{pip_install('server')}: without, this machine has clients only"
    return warn("versions", f"{text}; no {', '.join(missing)}", change)


def of_traces(environ: Mapping[str, str], found: dict[str, str]) -> Iterator[Finding]:
    """If the environment requests traces, judge whether they can be made."""
    variable = tracing.variable_of(environ)
    missing = [name for name, number in found.items() if not number]
    problem = tracing.protocol_problem(environ)
    if variable and missing:
        text = f"{variable} is set, but there is no {', '.join(missing)}: no traces are made"
        yield warn("traces", text, pip_install("otel"))
    elif variable and problem:
        yield warn("traces", f"{variable} is set, but no traces are made", problem)
    elif variable:
        texts = [f"{name} {number}" for name, number in found.items()]
        yield ok("traces", f"to where {variable} says; {', '.join(texts)}")


def has_gpu(system: System) -> bool:
    """Return whether a driver of NVIDIA is installed."""
    return system.has("proc/driver/nvidia/version") or system.has("dev/nvidia0")


def of_gpu(system: System, cupy: dict[str, str], devices: Callable[[], str]) -> Finding:
    """Judge the driver and CuPy. `devices` returns a description of the devices that CuPy finds, or
    raises an error."""
    if not has_gpu(system):
        return ok("GPU", "none with a driver: rows are cached in memory of the host")
    driver = system.text("proc/driver/nvidia/version").partition("\n")[0] or "a driver"
    if not cupy:
        change = f"{pip_install('cuda12')} or cuda13, by the driver; or --device cpu"
        return warn("GPU", f"{driver}; no CuPy: it is not used", change)
    if len(cupy) > 1:
        change = "remove all but one: they overwrite each other's files"
        return warn("GPU", f"several CuPys: {', '.join(cupy)}", change)
    ((name, number),) = cupy.items()
    try:
        return ok("GPU", f"{devices()}; {name} {number}")
    except Exception as exc:  # any error between a driver and its library
        change = "take the CuPy of the driver's CUDA (cuda12, cuda13), or a newer driver"
        return warn("GPU", f"{driver}; {name} {number} finds nothing: {exc}", change)


def of_gpu_memory(memory: Callable[[], tuple[int, int]]) -> Finding:
    """Judge the memory of the first GPU, which a trainer may share with the server.

    `memory` returns the free and the total bytes; it raises an error if no driver answers.
    """
    try:
        free, total = memory()
    except Exception as exc:  # any error between a driver and its library
        return warn("GPU memory", f"not known: {exc}", "see GPU")
    share = bytes_text(max(free - RESERVE_BYTES, 0) * 4 // 5)
    found = f"{bytes_text(free)} of {bytes_text(total)} free; --cache-bytes 80% takes {share}"
    if total - free > total * _USED_SHARE:
        change = (
            "other programs use the rest; a trainer that is not running yet needs memory, too: "
            "give --cache-bytes in bytes, all memory less the trainer's peak and 2GiB for calls"
        )
        return warn("GPU memory", found, change)
    return ok(
        "GPU memory", f"{found}; if a trainer uses this GPU, give bytes, less the trainer's peak"
    )


def _memory() -> tuple[int, int]:
    from embstore.device.cuda import open_runtime

    facts = open_runtime(0).facts()
    return facts["memory_free_bytes"], facts["memory_bytes"]


def _devices() -> str:
    from embstore.device.cuda import device_count, open_runtime

    count = device_count()
    if not count:
        raise OSError("no device")
    facts = open_runtime(0).facts()
    return f"{count} of {facts.get('model')}, driver {facts.get('driver_version')}"
