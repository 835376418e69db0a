"""Examples of README and guide are pasted by everybody, so they run as they stand.

Replaced are addresses, as a server of the test's own answers on free ports, and BACKUPS. What takes
a GPU, or another system, is marked `py` in place of `python`, and is not run. The
guide's tables of settings, errors, metrics, limits and routes are held against the code.
"""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import numpy as np
import pyarrow
import pytest
import typer
from pyarrow import parquet

import embstore
from embstore.config import Limits
from embstore.errors import EmbstoreError
from embstore_proto.status import ANSWERS
from embstore_server.cli import exits, main
from embstore_server.cli.commands import app
from embstore_server.setup.launch import ServerProcess
from embstore_server.setup.settings import load, markdown_table
from embstore_training.history import KIND
from tests.style.sources import ROOT, table_rows

README = (ROOT / "README.md").read_text()
GUIDE = {path.stem: path.read_text() for path in sorted((ROOT / "docs" / "guide").glob("*.md"))}
MIGRATING = {
    path.stem: path.read_text() for path in sorted((ROOT / "docs" / "migrating").glob("*.md"))
}
PAGES = {"README": README} | GUIDE | MIGRATING
EXAMPLES = {
    f"{name}-{number}": code
    for name, page in PAGES.items()
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
}
FRAMEWORKS = {
    "torch": "torch",
    "embedding-bag": "torch",
    "torchrec": "torch",
    "jax": "jax",
    "keras": "tests.frameworks.on_keras",
    "otel": "opentelemetry.sdk",
}
"""Pages whose examples need an extra, and what is imported to find it there."""
PREPARED = next(code for code in EXAMPLES.values() if '"items"' in code)
"""Makes the table that commands of other pages are about."""

OF_FILES = (
    "compile",
    "doctor",
    "report",
    "token",
    "profile",
    "size",
    "hotset",
    "verify",
    "restore-from",
)
RUN = {
    "kind": KIND,
    "session": {
        **{"name": "run", "tables": ["items"], "planner": "per_step"},
        **{"world_size": 1, "lookahead_steps_max": 1},
    },
    "samples": {"step": [0]},
    "cache": {"budget_bytes": 0, "layouts": []},
    "accesses": [],
}
"""Of a run without a step."""
BACKUPS = "/mnt/backups"
GRPC, REST, STANDBY_REST = "127.0.0.1:50051", "127.0.0.1:8080", "127.0.0.1:8081"


NOT_RUN = {"serve", "cluster", "set-shard-map"}
"""Of embstore: servers; what needs Ray (tests/cluster); what is for shards (test_shards.py)."""


def commands(page: str) -> list[list[str]]:
    """Return the words of each command of a page, without comments."""
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    lines = [line for block in blocks for line in re.findall(r"(?:.*\\\n)*.+", block)]
    return [shlex.split(line.replace("\\\n", "").partition("  #")[0]) for line in lines]


def is_run(words: list[str]) -> bool:
    """Say whether a command asks a running server, or works on files."""
    return words[0] == "curl" or (words[0] == "embstore" and words[1] not in NOT_RUN)


COMMANDS = {name: commands(page) for name, page in PAGES.items()}
ALL_COMMANDS = [words for page in COMMANDS.values() for words in page]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("examples")
    with ServerProcess(path / "tables", "--backup-within", f"{path}{BACKUPS}") as running:
        running.backups = f"{path}{BACKUPS}"
        yield running


def at(server: ServerProcess, word: str) -> str:
    """Replace the REST ports of the pages by that of a server."""
    return word.replace(REST, server.admin).replace(STANDBY_REST, server.admin)


def paste(example: str, server: ServerProcess) -> None:
    exec(compile(example.replace(GRPC, server.address), "example", "exec"), {})


@pytest.mark.parametrize("name", EXAMPLES)
def test_python_example_runs_and_may_be_pasted_again(name, server, tmp_path, monkeypatch):
    page = name.rpartition("-")[0]
    if page in FRAMEWORKS:
        pytest.importorskip(
            FRAMEWORKS[page], reason=f"needs the extra {page}: make test-frameworks"
        )
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        paste(EXAMPLES[name], server)


def test_the_trainer_can_be_pasted_twice_and_learns(server, capsys):
    (trainer,) = (example for example in EXAMPLES.values() if '"loss"' in example)
    losses = []
    for _ in range(2):
        paste(trainer, server)
        losses.append(float(re.search(r"loss (\S+)", capsys.readouterr().out)[1]))
    assert losses[1] < 0.5 < 0.6931  # of a coin


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("page", [name for name in PAGES if any(map(is_run, COMMANDS[name]))])
def test_commands_of_a_page_run_in_their_order(page, server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ids = np.random.default_rng(1).zipf(1.2, 50_000) % 1_000_000
    parquet.write_table(pyarrow.table({"item_id": ids}), "days.parquet")
    embstore.open("tables", device="cpu", cache_bytes=1 << 24).close()
    Path("run.json").write_text(json.dumps(RUN))
    paste(PREPARED, server)
    for words in filter(is_run, COMMANDS[page]):
        if words[0] == "embstore":
            address = [] if words[1] in OF_FILES else ["--address", server.address]
            own = [word.replace(BACKUPS, server.backups) for word in words[1:]]
            assert main([*own, *address]) == exits.OK, words
        else:
            found = run(["curl", "-sS", "--fail", *(at(server, word) for word in words[1:])])
            if any("/api/" in word for word in words):
                json.loads(found)


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def test_flags_of_serve_are_settings():
    """Those on a GPU too, which are not started here."""
    devices = set()
    for words in ALL_COMMANDS:
        if words[:2] == ["embstore", "serve"]:
            flags = dict(zip(words[2::2], words[3::2], strict=True))
            made = load({name[2:].replace("-", "_"): v for name, v in flags.items()}, {}, None)
            devices.add(made.device)
    assert devices == {"auto", "cuda:0"}


def test_files_extras_and_targets_of_the_commands_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for words in ALL_COMMANDS:
        line = " ".join(words)
        for path in re.findall(r"docker/[^\s:]+", line.partition(">")[0]):
            assert (ROOT / path).is_file()
        for names in re.findall(r"(?:^| )\.\[(.+?)\]", line):
            assert set(names.split(",")) <= extras["optional-dependencies"].keys()
        assert words[0] != "make" or words[1] in targets


def test_examples_import_from_one_root():
    roots = {
        module.partition(".")[0]
        for code in EXAMPLES.values()
        for module in re.findall(r"^ *(?:from|import) (embstore[\w.]*)", code, re.M)
    }
    assert roots == {"embstore"}


def test_every_command_is_in_the_guide():
    named = {words[1] for words in ALL_COMMANDS if words[0] == "embstore"} | {"demo"}
    assert named == set(typer.main.get_command(app).commands)


def test_the_table_of_settings_is_the_declared_one():
    """Write it anew by `embstore_server.setup.settings.markdown_table`."""
    assert markdown_table() in GUIDE["operating"]


def test_errors_are_in_the_table_with_their_codes(monkeypatch):
    rows = {row[0].split("`")[1]: row for row in table_rows(GUIDE["errors"], "class")}
    assert rows.keys() == {kind.__name__ for kind in ANSWERS}
    for kind, answer in ANSWERS.items():
        *_, codes, status = rows[kind.__name__]
        assert codes == f"{answer.code.name} / {answer.http}"
        monkeypatch.setattr("embstore_server.cli.commands.app", raising(kind("text")))
        assert main([]) == int(status)


def raising(error: EmbstoreError) -> Callable[..., None]:
    """Return a command line that ends with an error."""

    def app(*_: object, **__: object) -> None:
        raise error

    return app


def test_metrics_of_the_guide_are_those_of_a_server(server):
    paste(PREPARED, server)
    named = set(re.findall(r"`(embstore_\w+)`", GUIDE["operating"] + GUIDE["gpu"]))
    named.remove("embstore_device_scratch_bytes")  # of a GPU
    missing = named
    for _ in range(20):  # a scrape does not wait for a busy engine, but shows what it last knew
        scraped = read(f"http://{server.admin}/metrics")
        missing = named - set(re.findall(r"^# TYPE (\w+)", scraped, re.M))
        if not missing:
            return
    pytest.fail(f"no metrics: {missing}")


def read(url: str) -> str:
    with build_opener(ProxyHandler({})).open(url, timeout=300) as answer:
        text: str = answer.read().decode()
        return text


def test_routes_are_in_the_guide(server):
    paths = json.loads(read(f"http://{server.admin}/openapi.json"))["paths"]
    special = [p for p in paths if not p.startswith("/api/v1/commands/")]  # the guide shows one
    missing = [p for p in special if p.replace("{name}", "items") not in GUIDE["operating"]]
    assert len(special) < len(paths)
    assert not missing


def test_limits_of_the_guide_are_fields():
    (_, part) = GUIDE["operating"].split("## Capacity")
    named = set(re.findall(r"\(`(\w+)`\)", part))
    assert named <= {field.name for field in fields(Limits)}
    assert f"{Limits().log_rows_max:,} (`log_rows_max`)" in part


def test_readme_is_a_front_page():
    assert len(README.splitlines()) <= 200
    for path in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / path).exists(), path
