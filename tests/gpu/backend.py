"""The backend of tests/conformance on a real device, and whether there is one."""

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import embstore
from embstore.device.gpu import GpuDevice
from tests.conformance.backends import LEVEL_TWO_BYTES, Embedded


def why_not() -> str | None:
    """Return why nothing can run on a GPU here; None where something can."""
    if find_spec("cupy") is None:
        return "CuPy is not installed"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy tells at its import what it does not find, or twice
        from embstore.device.cuda import device_count

    return None if device_count() else "CuPy is there, a CUDA device is not"


class OnGpu(Embedded):
    """Stores of this process whose rows are cached by the first CUDA device.

    The driver keeps descriptors and threads of its own in the process.
    """

    offers = Embedded.offers - {"process", "memory"}
    device = "cuda"

    def _open(self, path: Path, options: dict[str, Any]) -> Any:
        from embstore.device.cuda import open_runtime

        if "device" in options:
            return super()._open(path, options)
        device = GpuDevice(open_runtime(0), options.pop("threads", None))
        options.setdefault("host_cache_bytes", self.host_cache_bytes)
        return embstore.open(path, files=self._files(path), device=device, **options)


class LevelTwoOnGpu(OnGpu):
    """The same with a level two, small enough that rows leave it too."""

    host_cache_bytes = LEVEL_TWO_BYTES
