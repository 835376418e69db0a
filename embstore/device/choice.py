"""The choice of a device by its name ("cpu", "cuda:0", "auto"), and memory shares such as "80%".

The module of a device is imported only when the device is chosen: the module of the CPU imports
LLVM's loader, the module of a GPU imports CuPy.
"""

import re
from typing import Any, cast

from embstore.device.base import Device
from embstore.errors import InvalidArgumentError
from embstore.version import pip_install

NAMES = "auto, cpu, cuda or cuda:N"
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)\s*%")


def is_device_name(name: Any) -> bool:
    """Return whether `open_device` accepts this name on a machine with such a device."""
    return isinstance(name, str) and re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name) is not None


def open_device(name: Any, threads: int | None) -> Device:
    """Return the device with this name; see `embstore.open`.

    Raises
    ------
    InvalidArgumentError : the name is invalid, there is no such GPU, or CuPy is not installed.
    """
    if not is_device_name(name):
        if hasattr(name, "warm_up"):
            return cast(Device, name)  # already a device
        raise InvalidArgumentError(f"expected device to be {NAMES}, found {name!r}")
    if name == "cpu" or (name == "auto" and not _gpu_count()):
        from embstore.device.cpu import CpuDevice

        return CpuDevice(threads)
    _, _, ordinal = name.partition(":")
    try:
        from embstore.device.cuda import open_runtime
    except ImportError as exc:
        raise InvalidArgumentError(
            f"device {name!r} needs CuPy ({exc}): {pip_install('cuda12')} or cuda13, by "
            "the driver's version"
        ) from exc
    from embstore.device.gpu import GpuDevice

    return GpuDevice(open_runtime(int(ordinal or 0)), threads)


def memory_share(text: Any) -> float | None:
    """Return the share of a device's memory that a text such as "80%" (0.8) states; None if the
    text states no share."""
    match = _SHARE.fullmatch(text.strip()) if isinstance(text, str) else None
    share = float(match[1]) / 100 if match else 0.0
    return share if 0 < share <= 1 else None


def _gpu_count() -> int:
    try:
        from embstore.device.cuda import device_count
    except ImportError:
        return 0
    return device_count()
