"""The benchmark of a GPU: its kernels beside its memory, the store's step beside torch's.

``python -m tests.bench.gpu`` measures everything in one process and one run, prints all figures and
the goals, and writes a JSON file into ``docs/figures/``. It needs CuPy, NumPy, Numba and a CUDA
device; torch is measured if it can be imported. The benchmark sets nothing on the device: the
clocks stay as they are.

The ceiling is the bandwidth of a device-to-device copy in the same run, with reads and writes
counted. The share of a figure is its bytes, divided by its time and by the ceiling. Bytes are
counted as in the headers of the kernels: bytes that a kernel reads twice count once if its header
says that the second read comes from a cache.

Times of the device are medians, taken from events in the stream of the kernels. Before each sample,
copies that are far larger than the L2 cache empty the cache. These copies take so long that the
host has queued all work of the sample before its first kernel begins. So the gaps between launches
are the device's own.

``--emulated`` runs every part with tiny sizes, without a GPU (tests/kernels/emulation). This shows
that everything runs, and gives no figures.

The exit status is also 1 if digests differ, or arrays of the GPU differ from arrays of the host.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tests.bench.gpu import guard, host, kernels, peer_torch, public, step, tiers, timeline
from tests.bench.gpu.goals import GOALS
from tests.bench.gpu.machine import Machine, versions
from tests.bench.gpu.scale import Scale
from tests.bench.program import NOTHING, Program, Run

PARTS: dict[str, Callable[..., Any]] = {
    "versions": versions,
    "digests": guard.measure,
    "digests-large": guard.at_scale,
    "kernels": kernels.measure,
    "step": step.measure,
    "host": host.measure,
    "shared": public.shared,
    "public": public.measure,
    "sessions": public.sessions,
    "torch": peer_torch.measure,
    **tiers.PARTS,
    "timeline": timeline.measure,
}


def measure(run: Run, wanted: Sequence[str]) -> None:
    machine = Machine(run.scale)
    run.keep("ceiling", kernels.ceiling, machine, run.scale)
    for name in wanted:
        found = run.keep(name, PARTS[name], machine, run.scale, run.folder / name)
        if found is not None and not _is_same(found):
            run.results["failed"][name] = "what has to be the same differs"


def _is_same(found: dict[str, Any]) -> bool:
    inner = (value for value in found.values() if isinstance(value, dict))
    return found.get("same", True) and all(map(_is_same, inner))


def derive(results: dict[str, Any]) -> None:
    """Say of each verb what share of the ceiling it moves."""
    for of_dim in results.get("kernels", {}).values() if "ceiling" in results else ():
        for verb in of_dim["verbs"].values():
            verb["share"] = verb["bytes_per_s"] / results["ceiling"]["bytes_per_s"]


PROGRAM = Program(
    name="gpu",
    about=__doc__,
    room="about 20 GB",
    parts=PARTS,
    groups={"tiers": list(tiers.PARTS)},
    measured=measure,
    scale=Scale,
    goals=GOALS,
    derive=derive,
    sizes={"quick": "fewer samples, under two minutes", "emulated": NOTHING},
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())
