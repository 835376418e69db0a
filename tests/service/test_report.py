"""A report of a run: one file that needs nothing else, with the numbers that the run kept."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore_server.cli import exits, main
from embstore_tools.report.reading import read
from embstore_training import history as module
from embstore_training.history import RunHistory
from tests.strange_files import listing, strew

ROWS, DIM, STEPS, KEYS = 2000, 8, 20, 60
HOSTILE = 'a<script>alert(1)</script>"&'


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """Train in a session by a hostile name, with a sample after each step; yield file and stats."""
    path = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(5)
    batches = [rng.zipf(1.3, KEYS) % ROWS for _ in range(STEPS)]
    with embstore.open(path / "store", device="cpu", cache_bytes=1 << 17, count_rate=1.0) as store:
        sgd, zero = embstore.Sgd(0.1), embstore.Constant(0.0)
        store.create_table("items", dim=DIM, rows=ROWS, optimizer=sgd, initializer=zero)
        with store.session(["items"], name=HOSTILE, lookahead=4) as run:
            history = RunHistory(store, run, every_s=0.0)
            for step in run.steps(batches, lambda batch: {"items": batch}):
                step.update({"items": np.ones_like(step.lookup()["items"])})
                history.note()
            history.save(path / "run.json")
            yield path / "run.json", run.stats()


class Document(HTMLParser):
    """What a page would load, and whether its tags are closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "data")]

    def handle_data(self, data: str) -> None:
        self.text += data


def drawn(path: Path, tmp_path: Path) -> str:
    folder, outside = tmp_path / "reports", tmp_path / "outside"
    strew(folder, outside)
    before = listing(tmp_path)
    (out := folder / "run.html").symlink_to(tmp_path / "run.html")  # one that was asked for
    assert main(["report", str(path), "-o", str(out)]) == exits.OK
    assert listing(tmp_path).keys() - before.keys() == {"reports/run.html", "run.html"}
    assert {name: listing(tmp_path)[name] for name in before} == before
    return out.read_text()


def test_the_samples_add_up_to_what_the_run_did(kept):
    path, stats = kept
    run = read(path)
    assert run.total("step") == stats.steps == STEPS
    assert run.total("lookup_s") == pytest.approx(stats.lookup_s)
    assert run.steps == list(range(1, STEPS + 1))
    assert run.total("lookup_keys") == run.total("lookup_hits") > STEPS
    assert sum(run.rates("lookup_keys")) == run.total("lookup_keys")
    assert run.rates("lookup_hits", "lookup_keys") == [1.0] * STEPS
    assert any(name.startswith("planning.") for name in run.samples)


def test_the_report_is_one_file_without_a_script_or_a_request(kept, tmp_path):
    text = drawn(kept[0], tmp_path)
    found = Document(text)
    assert not found.loads
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    assert not re.search(r"url\(|@import|https?://", text)
    assert found.tags.count("svg") == 7
    assert HOSTILE in found.text
    assert f"{STEPS} in " in found.text
    assert "100 % of" in found.text
    assert len(text) < 300_000


def test_a_report_is_not_written_over_its_run(kept, tmp_path, capsys):
    (path := tmp_path / "run.json").write_bytes(kept[0].read_bytes())
    assert main(["report", str(path), "-o", str(path)]) == exits.USAGE
    assert "--output: expected a file of its own" in capsys.readouterr().err
    assert path.read_bytes() == kept[0].read_bytes()


def test_the_advice_is_of_the_rows_that_were_accessed(kept, tmp_path):
    (accesses,) = json.loads(kept[0].read_text())["accesses"]
    assert accesses["tables"] == ["items"] and accesses["rows_of_tables"] == ROWS
    assert accesses["share"] == sorted(accesses["share"])
    assert accesses["share"][-1] == pytest.approx(1.0)
    assert accesses["counted"] >= STEPS * KEYS // 2
    wanted = next(r for r, s in zip(accesses["rows"], accesses["share"], strict=True) if s >= 0.9)
    assert f"{wanted:,} rows, " in Document(drawn(kept[0], tmp_path)).text


def test_a_long_run_keeps_few_samples(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SAMPLES_MAX", 8)
    with embstore.open(tmp_path / "store", device="cpu", cache_bytes=1 << 17) as store:
        sgd, zero = embstore.Sgd(0.1), embstore.Constant(0.0)
        store.create_table("items", dim=DIM, rows=ROWS, optimizer=sgd, initializer=zero)
        with store.session(["items"]) as run:
            history = RunHistory(store, run, every_s=0.0)
            for _ in run.steps([np.arange(3)] * 40, lambda batch: {"items": batch}):
                history.note()
            history.save(tmp_path / "run.json")
    found = read(tmp_path / "run.json")
    assert len(found.samples["step"]) <= 9
    assert found.samples["step"][0] == 0 and found.total("step") == 40


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("{", "expected JSON"),
        ("[1]", "found None"),
        ('{"kind": "embstore run 0"}', "found 'embstore run 0'"),
        ('{"kind": "embstore run 1", "session": {}}', "not whole"),
    ],
)
def test_what_is_no_file_of_a_run_is_refused(text, said, tmp_path, capsys):
    path = tmp_path / "run.json"
    if text is not None:
        path.write_text(text)
    assert main(["report", str(path), "-o", str(tmp_path / "run.html")]) == exits.USAGE
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run.html").exists()
