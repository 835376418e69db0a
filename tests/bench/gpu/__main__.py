"""The device beside its memory and torch; see the package, and `tests.bench.program`.

It has failed too where digests differ.
"""

import sys
from collections.abc import Sequence

from tests.bench import gpu
from tests.bench.gpu import guard, host, kernels, peer_torch, report, scale, shared, step, tiers
from tests.bench.gpu.machine import Machine, packages
from tests.bench.program import NOTHING, Program, Run


def measure(run: Run, wanted: Sequence[str]) -> None:
    """Measure the parts, the ceiling first."""
    machine = Machine(run.scale)
    run.results["packages"] |= packages()
    run.results["published_ms"] = report.PUBLISHED_MS | {"source": report.SOURCE}
    ceiling = run.keep("ceiling", kernels.ceiling, machine, run.scale)
    for name, compare in (("digests", guard.measure), ("digests-large", guard.at_scale)):
        if name in wanted:
            found = run.keep(name, compare, machine, run.scale, run.folder / name)
            if found is not None and not all(one["same"] for one in found.values()):
                run.results["failed"][name] = "CPU and device differ"
    if "kernels" in wanted and ceiling is not None:
        run.results["kernels"] = {}
        for dim in run.scale.dims:
            given = machine, run.scale, dim, ceiling["bytes_per_s"]
            found = run.attempt(f"kernels, dim {dim}", kernels.verbs, *given)
            if found is not None:
                run.results["kernels"][str(dim)] = found
    if "step" in wanted:
        run.keep("step", step.measure, machine, run.scale, run.folder / "step")
    if "host" in wanted:
        run.keep("host", host.measure, machine, run.scale, run.folder / "host")
    if "shared" in wanted:
        found = run.keep("shared", shared.measure, machine, run.scale, run.folder / "shared")
        if found is not None and not found["same"]:
            run.results["failed"]["shared"] = "arrays of the GPU and of the host differ"
    if "torch" in wanted:
        run.keep("torch", peer_torch.measure, run.scale)
    if "tiers" in wanted:
        run.keep("tiers", tiers.measure, machine, run.scale, run.folder / "tiers")


PROGRAM = Program(
    name="gpu",
    about=gpu.__doc__ or "",
    room="about 20 GB",
    parts=["digests", "digests-large", "kernels", "step", "host", "shared", "torch", "tiers"],
    measure=measure,
    scale=scale,
    report=report,
    sizes={"quick": "fewer samples, under two minutes", "emulated": NOTHING},
)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())
