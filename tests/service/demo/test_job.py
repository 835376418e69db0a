"""The job through an embedded store: exact, and better than guessing; a wrong store is found."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import embstore
from embstore import hash_ids
from embstore.errors import InvalidArgumentError
from embstore.handles.sessions import Sessions
from embstore.handles.store import Store
from embstore_tools import demo
from embstore_tools.demo import synthetic
from embstore_tools.demo.frameworks.registry import PACKAGES
from embstore_tools.demo.job import Job
from embstore_tools.demo.result import SessionResult
from embstore_tools.demo.showing import show
from embstore_tools.demo.trial import CHECKPOINT_LABEL
from embstore_tools.demo.ways import Ahead, Calls
from tests.service.demo.embedded import LOST, console, lose, text_of, trained

SMALL = Job(samples=20_000, batch=256, dim=8, scale=0.002)
EITHER_WAY = pytest.mark.parametrize("way", [Ahead(4), Calls()], ids=["session", "no session"])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "train.txt"
    synthetic.write(path, samples=SMALL.samples, rows=SMALL.rows)
    return path


@EITHER_WAY
def test_training_is_exact_and_learns(path, tmp_path, way):
    result = trained(replace(SMALL, way=way), path, tmp_path)
    assert result.exact
    assert result.digest == result.digest_of_check
    assert result.auc is not None and result.auc > 0.6
    assert result.steps == 79
    assert result.samples + result.samples_held_out == SMALL.samples
    assert result.samples_held_out == 78 * 26 + 4
    assert (result.session is None) == isinstance(way, Calls)
    assert result.bytes_written > 0
    with embstore.open(tmp_path) as store:
        assert store.checkpoints()[-1].label == CHECKPOINT_LABEL
        row_bytes = [table["row_bytes"] for table in store.stats()["tables"].values()]
        assert len(row_bytes) == result.tables == 26
        assert row_bytes[0] * sum(SMALL.rows) == result.table_bytes


@EITHER_WAY
def test_raw_text_trains_a_table_of_sparse_keys(path, tmp_path, way):
    result = trained(replace(SMALL, sparse=True, way=way), path, tmp_path)
    assert result.exact
    assert result.auc is not None and result.auc > 0.6
    with embstore.open(tmp_path) as store:
        table = store.table("criteo/sparse")
        assert (store.tables(), table.rows) == ([table.name], 2**64 - 1)
        assert table.scan().rows == result.rows < sum(SMALL.rows)
        fields = path.read_text().split("\n")[0].split("\t")[-26:]
        assert len(table.lookup([hash_ids([fields[1]], feature="criteo/c02")[0]]))


def test_no_rows_of_sparse_keys_are_counted():
    with pytest.raises(InvalidArgumentError, match="found rank or hot/cold"):
        Job(sparse=True, policy="rank")
    with pytest.raises(InvalidArgumentError, match="found rank or hot/cold"):
        demo.compare(job=Job(sparse=True), console=console())


def test_a_step_too_large_for_the_cache_is_done_in_parts(path, tmp_path):
    job = Job(samples=8192, batch=4096, dim=16, scale=0.02, cache_bytes=1 << 20)
    alone = trained(replace(job, way=Calls()), path, tmp_path / "alone")
    result = trained(job, path, tmp_path / "session")
    assert result.exact
    assert result.digest == alone.digest
    assert result.session is not None
    assert result.session.steps_in_parts == result.steps == 2
    assert result.session.hit_rate < 1


def test_a_block_that_is_all_held_out_is_no_step(path, tmp_path):
    """Of one line, the only one is held out."""
    job = replace(SMALL, samples=513)
    alone, result = (
        trained(replace(job, way=way), path, tmp_path / type(way).__name__)
        for way in (Calls(), Ahead())
    )
    assert alone.exact and result.exact
    assert (result.steps, result.samples, result.samples_held_out) == (2, 460, 53)
    assert (result.digest, result.auc) == (alone.digest, alone.auc)


def test_labels_without_a_signal_cannot_be_learnt(path, tmp_path):
    rng = np.random.default_rng(1)
    lines = [line[1:] for line in path.read_bytes().splitlines()]
    noise = [b"01"[label : label + 1] for label in rng.integers(2, size=len(lines))]
    mixed = tmp_path / "noise.txt"
    mixed.write_bytes(b"".join(n + line + b"\n" for n, line in zip(noise, lines, strict=True)))
    result = trained(SMALL, mixed, tmp_path / "store")
    assert result.exact
    assert result.auc is not None and 0.45 < result.auc < 0.55


@EITHER_WAY
def test_a_lost_gradient_is_found_and_named_at_once(path, tmp_path, way, monkeypatch):
    lose(monkeypatch, Store, "update")
    lose(monkeypatch, Sessions, "update_step")
    result = trained(replace(SMALL, way=way), path, tmp_path)
    assert not result.exact
    assert result.first_difference is not None
    assert result.first_difference.startswith(f"step 4, table '{LOST}', key ")
    assert result.differing_tables == (LOST,)
    assert result.digest != result.digest_of_check
    assert result.steps == 4
    shown = console()
    show(result, shown)
    assert "not equal to the dense check" in text_of(shown)


@EITHER_WAY
def test_malformed_line_far_in_the_file_is_named(path, tmp_path, way):
    lines = path.read_bytes().splitlines(keepends=True)[:2000]
    lines[1500] = b"0\tnonsense\n"
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"".join(lines))
    with pytest.raises(InvalidArgumentError, match=r"broken\.txt, line 1501: expected 40 fields"):
        trained(replace(SMALL, way=way), broken, tmp_path / "store")


@pytest.mark.parametrize("lines", [2, 3, 11])
def test_very_short_files(path, tmp_path, lines):
    short = tmp_path / "short.txt"
    short.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    result = trained(SMALL, short, tmp_path / "store")
    assert result.exact
    assert result.samples_held_out == (2 if lines == 11 else 1)


def test_one_line_is_not_enough(path, tmp_path):
    short = tmp_path / "short.txt"
    short.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(InvalidArgumentError, match="expected at least two samples"):
        trained(SMALL, short, tmp_path / "store")


WRONG = {"samples": 1, "batch": 0, "scale": 2, "dim": 0, "cache_bytes": 0, "cache_share": 0.0}


@pytest.mark.parametrize("wrong", [*WRONG.items(), ("scale", 0.0), ("policy", "oldest")], ids=str)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(InvalidArgumentError, match=wrong[0]):
        Job(**dict([wrong]))
    with pytest.raises(InvalidArgumentError, match="lookahead"):
        Ahead(0)


def session_of(hit_rate: float = 1.0, early_bytes: int = 500) -> SessionResult:
    return SessionResult.of(
        [
            {
                "lookahead_steps_max": 16,
                "lookup_keys": 1_000_000,
                "hit_rate": hit_rate,
                "early_bytes": early_bytes,
                "late_bytes": early_bytes * 3 // 5,
                "stall_s": 1.5,
                "steps_in_parts": 7,
            }
        ]
    )


def test_the_early_share_is_that_of_bytes():
    assert session_of().early_share == 0.625
    assert session_of(early_bytes=0).early_share == 0


def test_a_session_is_shown_and_one_miss_is_not_rounded_away(path, tmp_path):
    result = trained(replace(SMALL, samples=1000), path, tmp_path)
    texts = []
    for hit_rate in (1.0, 1 - 1e-6):
        shown = console()
        show(replace(result, session=session_of(hit_rate)), shown)
        texts.append(text_of(shown))
    assert "100 % of 1,000,000 unique keys" in texts[0]
    assert "not 100 %: 1 of 1,000,000 unique keys missed" in texts[1]
    for word in ("16 steps", "62.5%", "1.50 s", "7"):
        assert word in texts[0]


# The whole of it, with an embedded store in place of the server

LITTLE = Job(samples=4000, batch=512, scale=0.001)


def test_run_writes_a_file_and_shows_a_table(embedded, tmp_path):
    shown, kept = console(), tmp_path / "kept"
    result = demo.run(job=LITTLE, directory=kept, console=shown)
    assert result.exact
    assert result.session is not None and result.session.lookahead == Ahead.lookahead
    for line in ("writing samples ...", "training ...", "bit for bit", result.digest):
        assert line in text_of(shown)
    assert (kept / "train.txt").is_file()
    assert embedded == [kept / "store"]
    with pytest.raises(InvalidArgumentError, match="absent or empty"):
        demo.run(job=LITTLE, directory=kept, console=shown)


def test_run_with_json_prints_one_object_only(embedded, path, tmp_path):
    shown = console(terminal=True)
    result = demo.run(path, replace(LITTLE, samples=2000), console=shown, json=True)
    assert json.loads(text_of(shown)) == json.loads(json.dumps(result.as_json()))
    assert result.as_json()["exact"] is True
    assert not embedded[0].exists()  # nothing is kept


def test_run_on_a_terminal_draws_bars(embedded, path):
    shown = console(terminal=True)
    demo.run(path, replace(LITTLE, samples=2000), console=shown)
    assert "training" in text_of(shown)
    assert "1797/1797" in text_of(shown)


def test_run_refuses_a_wrong_file_before_anything_starts(embedded, tmp_path):
    (tmp_path / "bad.txt").write_text("label,i1,i2\n")
    with pytest.raises(InvalidArgumentError, match=r"bad\.txt, line 1"):
        demo.run(tmp_path / "bad.txt", console=console())
    assert not embedded


def test_a_framework_that_is_not_installed_is_named_with_its_extra(embedded, monkeypatch):
    monkeypatch.setitem(PACKAGES, "torch", ("no_such_package",))
    with pytest.raises(InvalidArgumentError, match=r"no_such_package.*\.\[torch\]"):
        demo.run(job=replace(LITTLE, framework="torch"), console=console())
    assert not embedded


def test_importing_the_demo_starts_nothing():
    code = (
        "import sys, threading, embstore_tools.demo;"
        "heavy = {'numba', 'grpc', 'torch', 'embstore_client'};"
        "print(threading.active_count(), heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout.split() == ["1", "set()"], done.stderr
