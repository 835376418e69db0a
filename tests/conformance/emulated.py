"""The backend of a GPU that is not there: the same launch code and `.cu` files, on the host.

`backends.py` says what a backend is. The device is `embstore.device.gpu` over memory of the tests
(tests/kernels/emulation), which runs lanes and blocks in an order of its own, orders copies as
lazily as streams allow, and finds every write out of bounds.
"""

from pathlib import Path
from typing import Any

import embstore
from embstore.device.gpu import GpuDevice
from tests.conformance.backends import LARGE_LEVEL_TWO_BYTES, LEVEL_TWO_BYTES, Embedded
from tests.kernels.emulation.runtime import EmulatedRuntime


class Emulated(Embedded):
    """Stores of this process whose rows are cached by an emulated GPU."""

    offers = Embedded.offers - {"memory"}
    device = "emulated"
    durability = "checkpoint"

    def _open(self, path: Path, options: dict[str, Any]) -> Any:
        if "device" in options:
            return super()._open(path, options)
        threads = options.pop("threads", None)
        device = GpuDevice(EmulatedRuntime(), threads)
        options.setdefault("host_cache_bytes", self.host_cache_bytes)
        return embstore.open(path, files=self._files(path), device=device, **options)


class WithLevelTwo(Emulated):
    """The same with a level two, small enough that rows leave it too."""

    host_cache_bytes = LEVEL_TWO_BYTES
    durability = "commands"


class WithLargeLevelTwo(WithLevelTwo):
    """The same with room for all rows that leave level one."""

    host_cache_bytes = LARGE_LEVEL_TWO_BYTES
