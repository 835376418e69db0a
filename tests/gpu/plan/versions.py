"""``python -m tests.gpu.plan.versions --json PATH``: what is here, and what all kernels compile to.

The kernels of the CPU are compiled beside those of the device: cold, they take half a minute.
"""

import argparse
import shutil
import tempfile
import threading
from pathlib import Path

from embstore.device.cpu import CpuDevice
from tests.bench import hardware
from tests.bench.gpu.machine import Machine, packages
from tests.bench.gpu.scale import emulated, full
from tests.bench.report import write_json

TOOLS = ("nvcc", "cuobjdump", "compute-sanitizer", "ncu", "nsys")


def main() -> None:
    """Print and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--emulated", action="store_true")
    arguments = parser.parse_args()
    cpu = CpuDevice(1)
    compiling = threading.Thread(target=cpu.warm_up)
    compiling.start()
    found = hardware.describe(tempfile.gettempdir())
    found["packages"] |= packages()
    found["tools"] = {tool: shutil.which(tool) for tool in TOOLS}
    device = Machine(emulated() if arguments.emulated else full()).device()
    device.warm_up()
    found["device"] = device.facts()
    device.close()
    compiling.join()
    cpu.close()
    write_json(found, arguments.json)
    facts = found["device"]
    print(
        f"{facts['model']}, driver {facts['driver_version']}, runtime {facts['runtime_version']}, "
        f"kernels compiled in {facts['compile_seconds']:.1f} s"
    )


if __name__ == "__main__":
    main()
