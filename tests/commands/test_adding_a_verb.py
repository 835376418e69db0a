"""A verb is added in four files, and then is everywhere: in a copy of the packages, two are.

The compiler of protobuf makes the code of the copy's .proto file, as `make proto` does. What the
verbs do then is in `added_verbs`, which runs in a process of the copy.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_architecture import ADDITIONS, paths
from tests.style.sources import ROOT

COMPILER = ROOT / ".venv-proto" / "bin" / "python"
PROTO = "proto/embstore_proto/v1/embstore.proto"
PACKAGES = "embstore", "client", "proto", "server"

EDITS = {
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


''',
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

''',
    },
}
"""By file: what is put before a text that is there once."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the packages, add the verbs, and make the code of the wire anew."""
    if not COMPILER.exists():
        pytest.skip("needs the compiler of protobuf: make .venv-proto/stamp")
    folder = tmp_path_factory.mktemp("copy")
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name, edits in EDITS.items():
        text = (folder / name).read_text()
        for before, added in edits.items():
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, added + before)
        (folder / name).write_text(text)
    made = [f"--{kind}_out=." for kind in ("python", "pyi", "grpc_python")]
    proto = Path(PROTO).relative_to("proto")
    compiler = [COMPILER, "-m", "grpc_tools.protoc", "-I.", *made, proto]
    subprocess.run(compiler, cwd=folder / "proto", check=True)
    return folder


def test_two_verbs_of_four_files_are_embedded_remote_and_over_shards(
    copy: Path, tmp_path: Path
) -> None:
    path = [copy, *(copy / package for package in PACKAGES[1:]), ROOT]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    program = [sys.executable, "-W", "error", "-m", "tests.commands.added_verbs", str(tmp_path)]
    done = subprocess.run(program, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_files_are_four_and_the_documented_ones(copy: Path) -> None:
    edited = {
        str(path.relative_to(copy))
        for path in copy.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and "_pb2" not in path.name
        and path.read_bytes() != (ROOT / path.relative_to(copy)).read_bytes()
    }
    (row,) = (row for row in ADDITIONS if row[0] == "a control verb")
    assert edited == set(EDITS) == set(paths(row[2]))
    assert len(edited) == int(row[1]) == 4
