"""The commands where the extra `cli` is installed alone: those for a server work, others say what
to add.

The packages of extras are hidden from a fresh interpreter, as if they were not installed.
"""

import subprocess
import sys
import tomllib
from collections.abc import Sequence

import pytest

from embstore.version import pip_install
from embstore_server.cli import exits
from tests.style.sources import ROOT

WITH_CLI_ALONE = """if True:
    import sys
    from importlib.abc import MetaPathFinder

    hidden = {"numba", "llvmlite", "fastapi", "starlette", "uvicorn", "prometheus_client"}
    hidden |= {"grpc_health", "grpc_reflection", "cupy", "fsspec", "pyarrow", "plotext"}
    hidden |= {"matplotlib", "torch"}
    hidden.update(%r)

    class Hidden(MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in hidden:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Hidden())
    from embstore_server.cli import main
    sys.exit(main(sys.argv[1:]))
"""


def light(*words: str, hidden: Sequence[str] = ()) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", WITH_CLI_ALONE % (hidden,), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    "words",
    [
        ["stats"],
        ["sessions"],
        ["table", "list"],
        ["table", "show", "ads"],
        ["table", "drop", "ads", "--yes"],
        ["export", "ads", "-o", "{folder}/ads.npy"],
        ["digest"],
        ["checkpoint", "one"],
        ["checkpoint", "--list"],
        ["call", "GetStats"],
        ["bench", "--rows", "100", "--dim", "4", "--keys", "50", "--calls", "2"],
    ],
    ids=" ".join,
)
def test_commands_for_a_server_need_one_extra(words, server, tmp_path):
    words = [word.replace("{folder}", str(tmp_path)) for word in words]
    done = light(*words, "--address", server.address, "--timeout", "300")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("server", ["serve", "--data", "unused"]),
        ("server", ["demo"]),
        ("fast", ["verify", "."]),
        ("fast", ["restore-from", "here", "there"]),
        ("fast", ["size", "--profile", "p"]),
        ("fast", ["hotset", "--profile", "p", "--budget", "1MiB"]),
    ],
)
def test_a_command_that_needs_more_says_which_extra(extra, words):
    done = light(*words)
    assert (done.returncode, done.stdout) == (exits.FAILED, "")
    expected = f"error: this command needs numba, which is not installed: {pip_install(extra)}"
    assert done.stderr.splitlines() == [expected]


def test_without_the_packages_of_the_command_line_it_names_their_extra():
    done = light("stats", hidden=("typer", "rich"))
    assert (done.returncode, done.stdout) == (exits.FAILED, "")
    expected = f"error: this command needs typer, which is not installed: {pip_install('cli')}"
    assert done.stderr.splitlines() == [expected]


def test_the_packages_of_the_command_line_are_no_burden_of_a_trainer():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {each.partition(">")[0] for each in project["dependencies"]}
    assert names == {"grpcio", "numpy", "protobuf", "xxhash"}
    extras = project["optional-dependencies"]
    assert {each.partition(">")[0] for each in extras["cli"]} == {"typer", "rich"}
    assert any("[cli" in each for each in extras["server"])
