"""The Node programs of this folder, with the packages that they import.

They are copied to `build/node`, where npm installs what package-lock.json says: once, as long as
that stays; from then on no network is needed. Where there is no Node, or no network the first time,
the tests are skipped.

package.json has the lowest versions that these tests were run with. proto-loader is not older than
0.8, the first one that takes a message apart which is no reply of a method: a reply of LookupStep.
"""

import fcntl
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.style.sources import ROOT

HERE = Path(__file__).parent
CLIENT = ROOT / "client" / "node"
PROTO = ROOT / "proto" / "embstore_proto" / "v1" / "embstore.proto"
_BUILD = ROOT / "build" / "node"
_NODE_MAJOR = 18
_INSTALL = ["npm", "ci", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund"]
_INSTALL += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
_NO_NETWORK = re.compile("ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|ETIMEDOUT")


def installed() -> Path:
    """Return the folder of the programs; skip the test where they cannot be run."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    if int(version.stdout[1:].split(".")[0]) < _NODE_MAJOR:
        pytest.skip(f"needs Node {_NODE_MAJOR}, found {version.stdout.strip()}")
    _BUILD.mkdir(parents=True, exist_ok=True)
    with open(_BUILD / "LOCK", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        _install()
        for source in (*CLIENT.glob("*.js"), *HERE.glob("*.js")):
            _copy(source)
    return _BUILD


def _install() -> None:
    stamp, wanted = _BUILD / "installed.json", (CLIENT / "package-lock.json").read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    stamp.unlink(missing_ok=True)
    for name in ("package.json", "package-lock.json"):
        _copy(CLIENT / name)
    _copy(HERE / ".npmrc")
    done = subprocess.run(_INSTALL, cwd=_BUILD, capture_output=True, text=True, timeout=600)
    if done.returncode and _NO_NETWORK.search(done.stderr):
        pytest.skip("npm finds no network; it needs one once, to install what the client imports")
    assert done.returncode == 0, done.stderr
    stamp.write_text(wanted)


def _copy(source: Path) -> None:
    """Copy a file, unless another process reads the same content there already."""
    target, content = _BUILD / source.name, source.read_bytes()
    if not target.exists() or target.read_bytes() != content:
        target.write_bytes(content)


class Program:
    """A program that a test talks to in lines of JSON."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield what it prints, as it comes."""
        assert self._process.stdout is not None
        return map(json.loads, self._process.stdout)

    def write(self, asked: Any) -> None:
        """Write it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()

    def call(self, verb: str, **asked: Any) -> dict[str, Any]:
        """Have calls.js make a call; return the reply, or the error."""
        self.write({"verb": verb} | asked)
        return next(iter(self))


@contextmanager
def running(program: str, address: str) -> Iterator[Program]:
    """Run a program of this folder against a server; it must end well."""
    command = ["node", program, address, str(PROTO)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=installed(), stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Program(process)
        except BaseException:
            process.kill()
            raise
        process.stdin.close()  # type: ignore[union-attr]
        assert process.wait() == 0
