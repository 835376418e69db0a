"""What docs/architecture.md says of additions is done, in a copy of the packages.

A verb is added by edits of four files, a stat by one, a setting by three, and no others; what is
added is then wherever its like are. That is checked by programs beside this, each in a process of
the copy: `python -m tests.additions.NAME FOLDER`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.test_architecture import ADDITIONS, paths
from tests.style.sources import ROOT

COMPILER = ROOT / ".venv-proto" / "bin" / "python"
PROTO = "proto/embstore_proto/v1/embstore.proto"
PACKAGES = "embstore", "client", "proto", "server"
GUIDE = "docs/guide/operating.md"

Edits = Mapping[str, Mapping[str, str]]
"""By file: what is put before a text that is there once."""

VERBS: Edits = {
    "embstore/commands/process.py": {
        "class ResizeCache(": '''\
class CountDirtyRows(Command[dict[str, int]], effect=Effect.READS, join=joins.total):
    """How many rows of each table are newer in the cache than on the disk."""


class AdvanceTable(
    Command[results.Acknowledged], effect=Effect.WRITES, right=Right.ADMIN, join=joins.first
):
    """Count more updates of a table than it has had."""

    table: str
    table_id: int | None
    updates: int


'''
    },
    PROTO: {
        "  rpc ResizeCache(": """\
  rpc CountDirtyRows(CountDirtyRowsRequest) returns (CountDirtyRowsReply);
  rpc AdvanceTable(AdvanceTableRequest) returns (AcknowledgedReply);
""",
        "message ResizeCacheRequest {": """\
message CountDirtyRowsRequest {}

message CountDirtyRowsReply {
  Context context = 1;
  map<string, uint64> rows = 2;
}

message AdvanceTableRequest {
  Origin origin = 1;
  string table = 2;
  optional uint64 table_id = 3;
  uint64 updates = 4;
}

""",
    },
    "embstore/engine/admin.py": {
        "def resize_cache(": '''\
def count_dirty_rows(engine: "Engine", command: c.CountDirtyRows, _: None) -> dict[str, int]:
    """Dirty rows by table."""
    with engine.tables.reading():
        tables = store_stats(engine)["tables"]
        return {name: table["dirty_rows"] for name, table in tables.items()}


def advance_table(engine: "Engine", command: c.AdvanceTable, _: None) -> Acknowledged:
    """Add to a table's t."""
    with engine.tables.writing(command):
        table = engine.tables.find(command.table, command.table_id)
        engine.storage.begin_change()
        table.t += command.updates
        return _acknowledged(engine, table.t)


''',
        "    c.ResizeCache: ": """\
    c.CountDirtyRows: count_dirty_rows,
    c.AdvanceTable: advance_table,
""",
    },
    "embstore/handles/store_checkpoints.py": {
        "    def flush(": '''\
    def count_dirty_rows(self) -> dict[str, int]:
        """Return how many rows of each table are newer in the cache than on the disk."""
        return self.executor.execute(c.CountDirtyRows())

    def advance_table(self, table: str, updates: int) -> int:
        """Count more updates of a table than it has had; return its t then."""
        return self.executor.execute(c.AdvanceTable(table, None, updates)).t

'''
    },
}

STAT: Edits = {
    "embstore/cache/counters.py": {
        "    calls_in_parts: int = counter(": """\
    lookups: int = counter("Lookups that found keys made unique.")
""",
        "        self.unique_keys += keys\n": """\
        self.lookups += 1
""",
    }
}

SETTING: Edits = {
    "server/embstore_server/setup/settings.py": {
        "    slow_call_ms: float = _log(\n": """\
    greetings: int = _log(kinds.NUMBER, "Greetings in the log when the server starts.", 0)
"""
    },
    "server/embstore_server/host/app.py": {
        "    metrics = Metrics()\n": """\
    for number in range(settings.greetings):
        event(logging.INFO, "greeting", number=number)
"""
    },
    GUIDE: {
        "| `--slow-call-ms` | MS |": """\
| `--greetings` | COUNT | 0 | Greetings in the log when the server starts. |
"""
    },
}


class Addition(NamedTuple):
    """Something that is added."""

    row: str
    """Of the table of docs/architecture.md."""
    edits: Edits
    program: str


EVERY = (
    Addition("a control verb", VERBS, "verbs"),
    Addition("a stat", STAT, "stat"),
    Addition("a setting", SETTING, "setting"),
)


def copied(folder: Path, edits: Edits) -> None:
    """Copy the packages and the guide, and edit them."""
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    (folder / GUIDE).parent.mkdir(parents=True)
    shutil.copy(ROOT / GUIDE, folder / GUIDE)
    for name, texts in edits.items():
        text = (folder / name).read_text()
        for before, added in texts.items():
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, added + before)
        (folder / name).write_text(text)


def changed(folder: Path) -> set[str]:
    """Return the files of a copy that are others than here."""
    files = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(p) for p in files if (folder / p).read_bytes() != (ROOT / p).read_bytes()}


def generate(folder: Path) -> None:
    """Make the code of a copy's .proto file, as `make proto` does."""
    if not COMPILER.exists():
        pytest.skip("needs the compiler of protobuf: make .venv-proto/stamp")
    made = [f"--{kind}_out=." for kind in ("python", "pyi", "grpc_python")]
    program = [COMPILER, "-m", "grpc_tools.protoc", "-I.", *made, Path(PROTO).relative_to("proto")]
    subprocess.run(program, cwd=folder / "proto", check=True)


@pytest.mark.parametrize("addition", EVERY, ids=lambda addition: addition.row)
def test_an_addition_takes_the_documented_files_and_is_everywhere(addition, tmp_path):
    copy, work = tmp_path / "copy", tmp_path / "work"
    work.mkdir()
    copied(copy, addition.edits)
    (row,) = (row for row in ADDITIONS if row[0] == addition.row)
    assert changed(copy) == {*addition.edits} == {*paths(row[2])}
    assert len(addition.edits) == int(row[1])
    if PROTO in addition.edits:
        generate(copy)
    path = [copy, *(copy / package for package in PACKAGES[1:]), ROOT]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    program = [sys.executable, "-W", "error", "-m", f"tests.additions.{addition.program}", work]
    done = subprocess.run(program, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
