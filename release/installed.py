"""Tries a wheel as a new user would: in an empty folder and environment, without a clone.

`python -m release.installed [WHEEL]` needs only the standard library. It installs the wheel with
the extra `server`, starts `embstore serve`, and runs the README's example to its result. It prints
how many seconds that took, of elapsed time and of processor time. Then it tries the command line,
REST, and a trainer that compares the server with an embedded store. With `--examples` it also runs
the examples of all pages, with the tests of this clone and without its packages.
"""

import argparse
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from release import source

ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = "embstore", "client/embstore_client", "client/embstore_training", "proto", "server"
_ADDRESS = "127.0.0.1:50051"
_READY_WITHIN_S = 600


def main() -> None:
    """Try the named wheel, or the wheel in dist/ for this machine."""
    parser = argparse.ArgumentParser(prog="python -m release.installed", description=__doc__)
    parser.add_argument("wheel", nargs="?", type=Path, help="default: the one in dist/")
    parser.add_argument("--examples", action="store_true", help="run the examples of all pages")
    given = parser.parse_args()
    wheel = (given.wheel or wheel_for_this_machine(ROOT / "dist")).resolve()
    readme = (ROOT / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        place = Place(Path(scratch))
        place.install(wheel, "server")
        say("installed", began)
        listen, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        with place.serving("--listen", listen, "--admin", admin):
            print(place.python("-c", example.replace(_ADDRESS, listen)), end="", flush=True)
            say("the README's example has its result", began)
            place.try_commands(listen)
            try_rest(admin)
            trainer = str(ROOT / "docker" / "image_test.py")
            print(place.python(trainer, listen, "twin", "--admin", admin), end="")
        if given.examples:
            say("the trainer is done", began)
            place.try_examples(wheel)
    say("passed", began)


def wheel_for_this_machine(folder: Path) -> Path:
    """Return the wheel in a folder that pip would choose on this machine."""
    kind = "manylinux*_x86_64" if platform.machine() == "x86_64" else "any"
    found = [*folder.glob(f"embstore-*-{kind}.whl")]
    if len(found) != 1:
        sys.exit(f"expected one wheel of {kind} in {folder}, found {len(found)}: make release")
    return found[0]


class Place:
    """A separate environment in an empty folder, without access to other packages."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bin = path / "venv" / "bin"
        known = ("PATH", "LANG", "PIP_")  # pip uses the package index of the machine's settings
        self._environment = {n: v for n, v in os.environ.items() if n.startswith(known)}
        self._environment |= {"HOME": str(path), "XDG_CACHE_HOME": str(path / "cache")}

    def install(self, wheel: Path, extras: str) -> None:
        """Create the environment, unless it exists, and install a wheel with extras."""
        self._run([sys.executable, "-m", "venv", str(self._bin.parent)])
        words = [
            "install",
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
            "--no-cache-dir",
        ]
        self.python("-m", "pip", *words, f"{wheel}[{extras}]")

    def python(self, *words: str) -> str:
        """Run Python in the folder; return its output."""
        return self._run([str(self._bin / "python"), *words])

    def try_commands(self, listen: str) -> None:
        """Check that the command line works."""
        command = str(self._bin / "embstore")
        print(self._run([command, "--version"]), end="")
        tables = self._run([command, "table", "list", "--address", listen])
        assert "ads" in tables, tables
        code = "import embstore; print(embstore.__file__)"
        assert self.python("-c", code).startswith(str(self._path)), "not what was installed"
        self._run([command, "table", "drop", "ads", "--yes", "--address", listen])

    def try_examples(self, wheel: Path) -> None:
        """Run the examples of all pages with the installed packages."""
        pages = self._path / "pages"
        source.export(pages)
        for package in _PACKAGES:
            shutil.rmtree(pages / package)
        self.install(wheel, "server,dev")
        words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/docs/test_examples.py")
        said = self._run([str(self._bin / "python"), *words], pages)
        print(said.splitlines()[-1])

    @contextmanager
    def serving(self, *words: str) -> Iterator[None]:
        """Run a server in the block. End it by SIGTERM, and check that it ends with status 0."""
        command = [str(self._bin / "embstore"), "serve", "--data", "tables", *words]
        log = self._path / "log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                command, cwd=self._path, env=self._environment, stdout=output, stderr=output
            )
        try:
            yield
            server.terminate()
            assert server.wait(timeout=_READY_WITHIN_S) == 0
        except BaseException:
            server.kill()
            server.wait()
            print(log.read_text())
            raise

    def _run(self, command: list[str], folder: Path | None = None) -> str:
        done = subprocess.run(
            command, cwd=folder or self._path, env=self._environment, text=True, check=False,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{command}: {done.returncode}\n{done.stdout}")
        return done.stdout


def try_rest(admin: str) -> None:
    """Check that the admin address answers by REST, and serves the page for browsers."""
    opened = build_opener(ProxyHandler({})).open
    for path, expected in (("/", b"<title>"), ("/readyz", b""), ("/openapi.json", b"openapi")):
        with opened(f"http://{admin}{path}", timeout=60) as answer:
            assert expected in answer.read(), path


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def say(what: str, began: float) -> None:
    """Print the progress, with the seconds so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime  # the time of child processes that have ended
    print(f"installed: {what} after {time.monotonic() - began:.1f} s, {cpu:.1f} s of processors")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
