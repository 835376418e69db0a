"""A GPU that is lost in the middle of an update, emulated; and a server process on it.

    python -m tests.service.faults.losing APPLIES serve --data DIR ...

is `embstore serve ...` whose device fails at its so many-th `apply`: an update of two pools has
then changed the rows of the first.
"""

import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embstore.device.gpu import GpuDevice
from embstore.device.gpu_rows import GpuRows
from embstore.device.gpu_work import GpuWork
from embstore.engine import opening
from embstore_server.cli import main
from embstore_server.setup.launch import ServerProcess
from tests.kernels.emulation.build import COMPILER
from tests.kernels.emulation.runtime import EmulatedRuntime
from tests.service.faults.served import PATIENCE_S

needs_compiler = pytest.mark.skipif(
    shutil.which(COMPILER) is None, reason=f"needs {COMPILER} to emulate a GPU"
)


class LosingDevice(GpuDevice):
    """Is lost at its `applies`-th apply, by a launch that fails: when it may."""

    def __init__(self, applies: int) -> None:
        self.emulated = EmulatedRuntime(name="cuda:0")
        super().__init__(self.emulated, 1)
        self._applies_left = applies
        self.fails_next, self.may_fail = threading.Event(), threading.Event()
        self.may_fail.set()
        self.rows = _LosingRows(self.work, self._count_apply)

    def _count_apply(self) -> None:
        self._applies_left -= 1
        if self._applies_left == 0:
            self.fails_next.set()
            self.may_fail.wait(PATIENCE_S)
            self.emulated.fail_at(1)


class _LosingRows(GpuRows):
    def __init__(self, work: GpuWork, before_apply: Callable[[], None]) -> None:
        super().__init__(work)
        self._before_apply = before_apply

    def apply(self, *arguments: Any) -> None:
        self._before_apply()
        super().apply(*arguments)


class LosingServer(ServerProcess):
    """`embstore serve` on such a device."""

    def __init__(self, applies: int, data: Path, *options: str) -> None:
        super().__init__(data, "--device", "cuda", "--durability", "checkpoint", *options)
        self._command[1:3] = ["-m", "tests.service.faults.losing", str(applies)]

    def end(self) -> int:
        """Wait until it ends by itself, and return its exit status."""
        assert self._process is not None and self._reader is not None
        status = self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return status


if __name__ == "__main__":
    applies = int(sys.argv[1])
    opening.open_device = lambda name, threads: LosingDevice(applies)  # type: ignore[assignment]
    sys.exit(main(sys.argv[2:]))
