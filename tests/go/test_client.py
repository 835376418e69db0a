"""The client in Go, made with the commands of docs/guide/other-languages.md, prints what is there.

It needs Go, protoc-gen-go and protoc-gen-go-grpc, and gRPC's sources where Go finds them without a
network: Debian's packages golang-go, golang-google-grpc-dev, protoc-gen-go-1-5 and
protoc-gen-go-grpc. The compiler is that of `make proto`.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from embstore_server.setup.launch import ServerProcess
from tests.style.sources import ROOT

PAGE = (ROOT / "docs" / "guide" / "other-languages.md").read_text()
PROTOC = ROOT / ".venv-proto" / "bin" / "python"
DEBIAN = "/usr/share/gocode"


def commands() -> list[list[str]]:
    """Return the words of the commands that make the client, as the page has them."""
    (block,) = re.findall(r"```sh\n(protoc .*?)```", PAGE, re.DOTALL)
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return the client, compiled."""
    missing = [tool for tool in ("go", "protoc-gen-go", "protoc-gen-go-grpc") if not found(tool)]
    if missing or not PROTOC.exists():
        pytest.skip(f"needs {', '.join(missing) or '.venv-proto, which `make proto` makes'}")
    folder = tmp_path / "src" / "trainer"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "client" / "go" / "main.go", folder)
    (folder / "embstore").symlink_to(ROOT)
    protoc, build = commands()
    run([str(PROTOC), "-m", "grpc_tools.protoc", *protoc[1:]], folder)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("GOPATH", DEBIAN), DEBIAN])
    env = {"GO111MODULE": "off", "GOPATH": paths, "GOCACHE": str(ROOT / "build" / "go")}
    done = run(build, folder, check=False, **env)
    if "cannot find package" in done.stderr and "google.golang.org" in done.stderr:
        pytest.skip("needs gRPC's sources for Go: Debian's golang-google-grpc-dev")
    assert done.returncode == 0, done.stderr
    return folder / "client"


def found(tool: str) -> bool:
    return shutil.which(tool) is not None


def run(
    words: list[str], folder: Path, *, check: bool = True, **env: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        words, cwd=folder, env=os.environ | env, check=check, capture_output=True, text=True,
        timeout=1200,
    )  # fmt: skip


def test_it_prints_what_is_documented(program, tmp_path):
    (expected,) = re.findall(r"prints:\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    with ServerProcess(tmp_path / "served", "--cache-bytes", "64MiB") as server:
        done = run([str(program), server.address], tmp_path)
    assert done.stdout == expected
