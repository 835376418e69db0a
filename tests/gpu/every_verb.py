"""``python -m tests.gpu.every_verb``: every verb on the first CUDA device, small, once.

What compute-sanitizer is run over: a program that reaches every kernel in seconds, though each of
its accesses is watched. The calls are the benchmark's. ``--emulated`` takes the emulated device.
"""

import sys
from dataclasses import replace

from tests.bench.gpu import kernels
from tests.bench.gpu.machine import Machine
from tests.bench.gpu.scale import Scale
from tests.bench.sizes import of_size

DIMS = (7, 12, 128)
"""By 4 bytes and by 16, fewer lanes than a warp and all of them."""


def small() -> Scale:
    """Return the sizes of the emulation, for the device."""
    return replace(of_size(Scale, "emulated"), emulated=False)


def main(scale: Scale) -> None:
    """Run the verbs; raises what goes wrong."""
    for dim in DIMS:
        found = kernels.verbs(Machine(scale), scale, dim)
        print(f"dim {dim}: {len(found['verbs'])} verbs")


if __name__ == "__main__":
    main(of_size(Scale, "emulated") if "--emulated" in sys.argv[1:] else small())
