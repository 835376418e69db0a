"""Which package knows which, and what importing the light client costs.

server -> proto, engine, client (in cli and demo, which are its users)
client -> proto, and of the engine errors, config, arrays, results, arithmetic, feed, frequency
proto  -> of the engine errors and config
engine -> nothing of them
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.style.sources import ROOT, parse, place, project_files

LIGHT = {"errors", "config", "arrays", "results", "arithmetic", "feed", "frequency"}
"""What of the engine draws in neither Numba nor a device."""

USERS = ("server/embstore_server/cli", "server/embstore_server/demo")


def imported(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """Yield the modules of this project that a file imports."""
    for node in ast.walk(parse(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "embstore":
                names = [f"embstore.{alias.name}" for alias in node.names]
        yield from ((name, node) for name in names if name.startswith("embstore"))


def strays(under: str, allowed: set[str], light: set[str]) -> list[str]:
    """Return the places that import another package than allowed, or a heavy part of the engine."""
    found = []
    for path in project_files(".py", under=under):
        for name, node in imported(path):
            package, _, rest = name.partition(".")
            part = rest.partition(".")[0]
            public_class = part[:1].isupper()  # from embstore import Adam: of errors or config
            if package not in allowed or (
                package == "embstore" and part not in light and not public_class
            ):
                found.append(f"{place(path, node)}: imports {name}")
    return found


def test_the_engine_knows_no_other_package() -> None:
    packages = ("embstore_proto", "embstore_server", "embstore_client")
    found = [
        f"{place(path, node)}: imports {name}"
        for path in project_files(".py", under="embstore")
        for name, node in imported(path)
        if name.startswith(packages)
    ]
    assert not found


def test_the_wire_knows_errors_and_configurations_only() -> None:
    assert not strays("proto", {"embstore", "embstore_proto"}, {"errors", "config"})


def test_the_client_stays_light() -> None:
    assert not strays("client", {"embstore", "embstore_proto", "embstore_client"}, LIGHT)


def test_only_users_inside_the_server_know_the_client() -> None:
    found = [
        f"{place(path, node)}: imports {name}"
        for path in project_files(".py", under="server")
        for name, node in imported(path)
        if name.startswith("embstore_client") and not str(path.relative_to(ROOT)).startswith(USERS)
    ]
    assert not found


LOADED = """if True:
    import sys
    from embstore_client import RemoteStore, connect
    heavy = {"numba", "cupy", "fastapi", "uvicorn", "typer", "rich", "embstore.store"}
    print(*sorted(heavy & set(sys.modules)))
"""


def test_importing_the_client_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


TIMED = """if True:
    import time
    begin = time.process_time()
    {}
    print(time.process_time() - begin)
"""
CLIENT = "from embstore_client import connect"
LIBRARIES = "import numpy, grpc, google.protobuf.message"
CLIENT_S, LIBRARIES_S, ROUNDS = 0.3, 0.2, 15
"""Where the client may take the first, the libraries that it needs take the second alone."""


def processor_seconds(statement: str) -> float:
    command = [sys.executable, "-c", TIMED.format(statement)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_importing_the_client_takes_a_third_of_a_second_at_most() -> None:
    """Processor seconds, the best of several rounds: others use this machine too.

    They can slow it to half its speed for minutes. So NumPy and gRPC alone, which the client cannot
    do without, tell in the same rounds how fast it is; where they take longer than on the machine
    the bound is for, the client may take longer in the same proportion, and never otherwise.
    """
    client, libraries = float("inf"), float("inf")
    for _ in range(ROUNDS):
        client = min(client, processor_seconds(CLIENT))
        libraries = min(libraries, processor_seconds(LIBRARIES))
        if client <= CLIENT_S * max(1.0, libraries / LIBRARIES_S):
            return
    pytest.fail(
        f"importing embstore_client took {client:.2f} processor seconds, its libraries alone "
        f"{libraries:.2f}"
    )
