"""Commands that are killed at random moments: the next run of the same command finishes.

A moment is a share of the time of an undisturbed run, so slow machines have such moments too. Most
are after the start of Python, during the work.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore_client import connect
from embstore_server.setup.launch import ServerProcess
from tests.service.faults.served import PATIENCE_S

KILLS, ROWS, DIM = 4, 150_000, 16


def started(*words: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "embstore_server", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finished(*words: str) -> float:
    """Run a command to its end, which is a good one; return how long it took."""
    begin = time.monotonic()
    process = started(*words)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors.decode()
    return time.monotonic() - begin


def killed(rng: np.random.Generator, took: float, *words: str) -> bool:
    """Kill a command at a random moment; return whether it was not done by then."""
    process = started(*words)
    try:
        process.wait(took * rng.uniform(0.4, 1.0))
    except subprocess.TimeoutExpired:
        process.kill()
    process.communicate()
    assert process.returncode in (0, -9)
    return process.returncode != 0


def rows_of(table: Any) -> tuple[bytes, bytes, int]:
    """Return weights, optimizer state and t of all rows."""
    weights, state = table.read_rows(np.arange(ROWS))
    return weights.tobytes(), state.tobytes(), table.t


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server with a table of trained rows; the working directory is a folder of its own."""
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    options = "--device", "cpu", "--cache-bytes", "32MiB", "--backup-within", str(folder)
    with ServerProcess(tmp_path / "store", *options) as process:
        monkeypatch.setenv("EMBSTORE_ADDRESS", process.address)
        with connect(process.address, timeout_s=PATIENCE_S) as store:
            optimizer, initializer = embstore.Adagrad(0.1), embstore.Constant(0.5)
            table = store.create_table(
                "ads", rows=ROWS, dim=DIM, optimizer=optimizer, initializer=initializer
            )
            for low in range(0, ROWS, 50_000):
                table.update(np.arange(low, low + 50_000), np.ones((50_000, DIM), np.float32))
            store.checkpoint("one")
            yield store


def moments(soak, words, reset):
    """Kill a command, run it to its end, and yield, at each of some moments."""
    rng = np.random.default_rng([20261127, soak])
    took, cut = finished(*words), 0
    for _ in range(KILLS):
        reset()
        cut += killed(rng, took, *words)
        yield
    assert cut, "no kill came before the end"


def names():
    return sorted(path.name for path in Path().iterdir())


def test_export(server, soak):
    words = "export", "ads", "-o", "rows.safetensors", "--with-state"
    for _ in moments(soak, words, lambda: Path("rows.safetensors").unlink(missing_ok=True)):
        finished(*words)
        assert names() == ["rows.safetensors"]
        finished("import", "back", "rows.safetensors", "--create", "--with-state")
        assert rows_of(server.table("back")) == rows_of(server.table("ads"))
        server.drop_table("back")


def test_import(server, soak):
    finished("export", "ads", "-o", "rows.safetensors", "--with-state")
    words = "import", "back", "rows.safetensors", "--create", "--with-state"
    for _ in moments(soak, words, lambda: server.drop_table("back")):
        finished(*words)
        assert rows_of(server.table("back")) == rows_of(server.table("ads"))
    assert names() == ["rows.safetensors"]


def test_backup_and_restore_from(server, soak, tmp_path):
    """The next backup goes on with the files that are copied. A directory that was restored whole
    is refused as it is."""
    expected, rng = rows_of(server.table("ads")), np.random.default_rng([20261128, soak])
    took = finished("backup", str(Path("kept").absolute()), "--label", "one")
    whole = finished("restore-from", "kept", "whole", "--label", "one")
    for number in range(KILLS):
        kept, again = Path(f"kept-{number}").absolute(), f"again-{number}"
        killed(rng, took, "backup", str(kept), "--label", "one")
        finished("backup", str(kept), "--label", "one")
        finished("verify", str(kept))
        killed(rng, whole, "restore-from", str(kept), again, "--label", "one")
        begun = started("restore-from", str(kept), again, "--label", "one")
        _, errors = begun.communicate(timeout=PATIENCE_S)
        assert begun.returncode == 0 or (b"empty" in errors and Path(again, "CATALOGUE").exists())
        finished("verify", again)
        with embstore.open(again, cache_bytes=32 << 20, read_only=True) as store:
            assert rows_of(store.table("ads")) == expected
