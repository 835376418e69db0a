"""The plan's command line; see the package. Status 75: time was up, and parts are left."""

import argparse
import signal
import sys
from pathlib import Path

from tests.gpu import plan
from tests.gpu.backend import why_not
from tests.gpu.plan.parts import parts_of
from tests.gpu.plan.runner import Plan


def main() -> int:
    """Run what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.plan",
        description=plan.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="run these again; default: go on")
    parser.add_argument("--out", type=Path, help="folder of the results; default: build/gpu")
    parser.add_argument("--minutes", type=float, default=8.0, help="for this call; default: 8")
    parser.add_argument("--emulated", action="store_true", help="tiny, on the emulated device")
    arguments = parser.parse_args()
    usual = Path("build", "gpu-emulated" if arguments.emulated else "gpu")
    folder = (arguments.out or usual).resolve()
    parts = parts_of(folder, is_emulated=arguments.emulated)
    names = [part.name for part in parts]
    unknown = sorted(set(arguments.parts) - set(names))
    if unknown:
        parser.error(f"expected parts of {', '.join(names)}; found {', '.join(unknown)}")
    reason = None if arguments.emulated else why_not()
    if reason is not None:
        parser.error(f"{reason}; --emulated runs the parts on the emulated device")
    for number in (signal.SIGTERM, signal.SIGHUP):  # the running part ends with the plan
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    return Plan(parts, folder, 60 * arguments.minutes).run(arguments.parts)


if __name__ == "__main__":
    sys.exit(main())
