"""The README's examples are pasted by everybody, so they run as they stand.

The address is the one thing replaced: a server of the test's own answers on a free port.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from embstore_proto.status import ANSWERS
from embstore_server.launch import ServerProcess
from embstore_server.settings import Settings, load
from tests.style.sources import ROOT

README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    line.replace("\\\n", "").partition("  #")[0]
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in re.findall(r"(?:.*\\\n)*.+", block)
]
OF_FILES = ("profile", "size", "hotset")
GRPC, REST = "127.0.0.1:50051", "127.0.0.1:8080"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("readme") / "tables") as running:
        yield running


@pytest.mark.parametrize("example", EXAMPLES)
def test_python_example_runs(
    example: str,
    server: ServerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    example = example.replace(GRPC, server.address)
    exec(compile(example, "README.md", "exec"), {})
    digest = capsys.readouterr().out.split()[-1]
    assert re.fullmatch("[0-9a-f]{64}", digest)


def test_the_trainer_can_be_pasted_twice_and_learns(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    (trainer,) = (e for e in EXAMPLES if "embstore_client" in e and "loss" in e)
    losses = []
    for _ in range(2):
        exec(compile(trainer.replace(GRPC, server.address), "README.md", "exec"), {})
        losses.append(float(re.search(r"loss (\S+)", capsys.readouterr().out)[1]))
    assert losses[1] < 0.5 < 0.6931  # of a coin


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_operators_commands_run_in_their_order(
    server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ids = np.random.default_rng(1).zipf(1.2, 50_000) % 1_000_000
    parquet.write_table(pyarrow.table({"item_id": ids}), "days.parquet")
    (example,) = (e for e in EXAMPLES if '"items"' in e)
    exec(compile(example.replace(GRPC, server.address), "README.md", "exec"), {})
    ran = 0
    for line in COMMANDS:
        words = shlex.split(line)
        if words[0] == "embstore" and words[1] != "serve":
            address = [] if words[1] in OF_FILES else ["--address", server.address]
            run([sys.executable, "-m", "embstore_server", *words[1:], *address])
        elif words[0] == "curl":
            found = run(curl(line, server.admin))
            if "/api/" in line:
                json.loads(found)
        else:
            continue
        ran += 1
    assert ran >= 15


def test_servers_are_told_what_they_understand() -> None:
    """Those on a GPU too, which are not started here."""
    devices = set()
    for words in map(shlex.split, COMMANDS):
        if words[:2] == ["embstore", "serve"]:
            flags = dict(zip(words[2::2], words[3::2], strict=True))
            made = load({name[2:].replace("-", "_"): v for name, v in flags.items()}, {}, None)
            devices.add(made.device)
    assert devices == {"auto", "cuda:0"}


def test_files_and_extras_of_the_commands_are_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in COMMANDS:
        for path in re.findall(r"docker/\S+", line):
            assert (ROOT / path).is_file()
        for names in re.findall(r"embstore\[(.+?)\]", line):
            assert set(names.split(",")) <= extras["optional-dependencies"].keys()


def curl(line: str, admin: str) -> list[str]:
    return ["curl", "-sS", "--fail", *shlex.split(line.replace(REST, admin))[1:]]


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def test_every_setting_is_in_the_table() -> None:
    for field in fields(Settings):
        assert f"`--{field.name.replace('_', '-')}`" in README


def test_every_error_is_in_the_table_with_its_codes() -> None:
    for kind, answer in ANSWERS.items():
        (row,) = (
            r for r in README.splitlines() if r.startswith("| `") and f"`{kind.__name__}`" in r
        )
        assert f"{answer.code.name} / {answer.http}" in row


def test_readme_has_its_examples() -> None:
    assert len(EXAMPLES) == 4
