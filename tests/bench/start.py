"""The cost of starting a server, from exec to "ready": processor time, and the number of imported
modules.

    python -m tests.bench.start [STARTS]

Unlike elapsed time, neither figure depends on what else the machine does. Every start opens an
empty store, with compiled kernels; the medians of STARTS starts are printed.
"""

import json
import os
import subprocess
import sys
import tempfile
from statistics import median

PROGRAM = """
import json, os, resource, signal, sys
from embstore_server.host import app
from embstore_server import cli

event = app.event

def noted(level, name, **fields):
    event(level, name, **fields)
    if name == "ready":
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps([used.ru_utime + used.ru_stime, list(sys.modules)]))
        os.kill(os.getpid(), signal.SIGTERM)

app.event = noted
sys.exit(cli.main(sys.argv[1:]))
"""


def start() -> tuple[float, set[str]]:
    """Start a server; return its processor seconds, and its modules, when it is ready."""
    free = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", PROGRAM, "serve", "--data", f"{folder}/store", *free]
        environment = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}
        ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    seconds, modules = json.loads(ended.stdout)
    return seconds, set(modules)


def main(starts: int) -> None:
    """Print the medians of some starts; one before them writes Python's bytecode."""
    start()
    found = [start() for _ in range(starts)]
    print(f"ready after {median(s for s, _ in found):.2f} s of a processor", end=", ")
    print(f"{median(len(m) for _, m in found):.0f} modules imported ({starts} starts)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 5)
