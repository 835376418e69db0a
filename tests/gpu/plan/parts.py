"""The parts of the plan, and what each is on the emulated device."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import installed
from tests.bench.gpu import tiers
from tests.gpu.plan.runner import Part

CONFORMANCE_PROCESSES = 8
NO_OTHER_PLUGINS = "--disable-plugin-autoload"
"""Warnings are errors: a plugin of the machine that warns at its start would end the run."""
PROFILED = "unique_enter|sum_chunks|combine|apply_.*|gather.*|probe"
OTHER_TIERS = [part for part in tiers.PARTS if part != tiers.PROMISED.part]
NO_GPU = "is of a real GPU; the emulation has guards of its own"


class _Commands:
    """How a part is run: on a GPU, or emulated."""

    def __init__(self, folder: Path, *, is_emulated: bool) -> None:
        self._folder = folder
        self.is_emulated = is_emulated
        self.lacks_torch = installed.lacking(["torch"])
        self.lacks_a_server = installed.lacking(installed.SERVER)

    def program(self, module: str, *options: str) -> list[str]:
        """Run a module that knows `--emulated`."""
        return [sys.executable, "-m", module, *options, *self._emulated()]

    def pytest(self, on_gpu: Sequence[str], emulated: Sequence[str]) -> list[str]:
        """Run tests."""
        chosen = emulated if self.is_emulated else ["-m", "gpu", *on_gpu]
        return [sys.executable, "-m", "pytest", "-q", NO_OTHER_PLUGINS, *chosen]

    def sanitizer(self, tool: str) -> list[str]:
        """Run every verb under a tool of compute-sanitizer."""
        options = ["--tool", tool, "--error-exitcode", "99"]
        return ["compute-sanitizer", *options, *self.program("tests.gpu.every_verb")]

    def benchmark(
        self,
        name: str,
        settles: str,
        usual_s: float,
        *only: str,
        is_quick: bool = False,
        lacks: str | None = None,
    ) -> Part:
        """Return a part that is some of `tests.bench.gpu`."""
        figures = self._folder / f"{name}.figures"
        size = ["--quick"] if is_quick and not self.is_emulated else []
        measured = ["--only", *(only or (name,))]
        options = [*size, "--json", str(figures), *measured]
        command = self.program("tests.bench.gpu", *options)
        return Part(name, settles, command, usual_s, lacks, figures)

    def _emulated(self) -> list[str]:
        return ["--emulated"] if self.is_emulated else []

    def lacks(self, tool: str) -> str | None:
        """Return why a tool for GPUs cannot be used."""
        if self.is_emulated:
            return f"{tool} {NO_GPU}"
        return None if shutil.which(tool) else f"{tool} is not on the PATH"


def parts_of(folder: Path, *, is_emulated: bool) -> list[Part]:
    """Return all parts, whose figures go into a folder, in their order: what settles most first."""
    run = _Commands(folder, is_emulated=is_emulated)
    return [*_at_first(run), *_whether_right(run), *_how_fast(run)]


def _at_first(run: _Commands) -> list[Part]:
    """Return what some minutes settle: that it runs, is right, and is fast, by few samples."""
    return [
        run.benchmark("versions", "what is installed, what compiles", 30),
        run.benchmark(tiers.PROMISED.part, "missing rows at the speed of the bus, and hidden", 40),
        Part(
            "runtime",
            "every method of the runtime, and what its failures are",
            run.pytest(
                ["tests/gpu/test_cuda_runtime.py"], ["tests/kernels/test_emulated_runtime.py"]
            ),
            40,
        ),
        Part("verbs", "every verb of the device, small", run.program("tests.gpu.every_verb"), 20),
        run.benchmark("digests", "one digest on CPU and device", 40, is_quick=True),
        run.benchmark("tiers", "smaller caches, less below them", 75, *OTHER_TIERS),
        run.benchmark(
            "timeline",
            "kernels, copies and the gaps between them",
            45,
            lacks=None if run.is_emulated else run.lacks_torch,
        ),
        run.benchmark(
            "first", "kernels and the step, few samples", 60, "kernels", "step", is_quick=True
        ),
    ]


def _whether_right(run: _Commands) -> list[Part]:
    """Return the tests of every verb."""
    return [
        *(
            Part(
                tool,
                f"{tool} of every verb",
                run.sanitizer(tool),
                90,
                run.lacks("compute-sanitizer"),
            )
            for tool in ("memcheck", "racecheck")
        ),
        run.benchmark("digests-large", "one digest at a million keys, half the rows cached", 60),
        Part(
            "side-streams",
            "arrays that a side stream of torch writes",
            run.pytest(
                ["tests/gpu/test_side_streams.py"], ["tests/unit/test_arrays_on_the_device.py"]
            ),
            15,
            None if run.is_emulated else run.lacks_torch,
        ),
        Part(
            "torch-modules",
            "modules of torch in a loop, which waits for nothing",
            run.pytest(
                ["tests/gpu/test_torch_modules.py"], ["tests/frameworks/test_torch_on_gpu.py"]
            ),
            30,
            run.lacks_torch,
        ),
        Part(
            "conformance",
            "the conformance suite on the device",
            run.pytest(
                [
                    *_processes(),
                    "tests/conformance",
                    "tests/gpu/test_conformance_on_gpu.py",
                    "-k",
                    "not level-two",
                ],
                ["tests/conformance/reads", "tests/conformance/writes", "-k", "emulated"],
            ),
            300,
        ),
        Part(
            "level-two",
            "the conformance suite with a level two",
            run.pytest(
                [*_processes(), "tests/conformance", "-k", "level-two"],
                ["tests/conformance/reads", "tests/conformance/writes", "-k", "level-two"],
            ),
            300,
        ),
    ]


def _how_fast(run: _Commands) -> list[Part]:
    """Return the measurements, and the tests of other processes that use the device."""
    return [
        run.benchmark("kernels", "every kernel beside its bytes", 90),
        run.benchmark("step", "the step with all rows resident", 40),
        run.benchmark("host", "Python of a call above the runtime", 20),
        Part(
            "shared-memory",
            "memory of the GPU between two processes: events, ends of either, digests",
            run.pytest(["tests/gpu/test_shared_memory_on_gpu.py"], ["tests/service/device"]),
            90,
            run.lacks_a_server,
        ),
        run.benchmark(
            "shared",
            "a trainer's calls through memory of the GPU, of the host, and in process",
            60,
            lacks=run.lacks_a_server,
        ),
        run.benchmark(
            "public",
            "the step as a user calls it, in process and from another process",
            90,
            lacks=run.lacks_a_server,
        ),
        run.benchmark("sessions", "a session's step, rows on the host and on the device", 60),
        run.benchmark("torch", "torch on the same step", 40, lacks=run.lacks_torch),
        Part(
            "profile",
            "what ncu says of the step's kernels",
            [*_ncu(), *run.program("tests.bench.gpu", "--quick", "--only", "step")],
            90,
            run.lacks("ncu"),
        ),
        Part(
            "served",
            "a DLRM trained through a server on the device, every bit compared",
            [sys.executable, "-m", "embstore_server", "demo", "--samples", "60000"]
            if not run.is_emulated
            else run.pytest([], ["tests/service/faults/test_device_loss.py"]),
            60,
            run.lacks_a_server,
        ),
    ]


def _processes() -> list[str]:
    """Return the options that spread a suite over processes."""
    if installed.lacking(["xdist"]):
        return []
    return ["-p", "xdist", "-n", str(CONFORMANCE_PROCESSES), "--dist", "worksteal"]


def _ncu() -> list[str]:
    """Return the profiler and its options."""
    ncu = ["ncu", "--clock-control", "none", "--kernel-name-base", "function", "--kernel-name"]
    return [*ncu, f"regex:{PROFILED}", "--launch-skip", "20", "--launch-count", "24"]
