"""The commands for profiles, hot sets and warm-up, against a server that runs."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.frequency.hotset import HotSet
from embstore.frequency.profile import Profile, TableProfile
from embstore_server.cli import exits, main
from tests.service.rest import fill
from tests.serving import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    def open_store() -> embstore.Store:
        store = embstore.open(
            tmp_path / "store", cache_bytes=1 << 20, policy="rank", count_rate=1.0, device="cpu"
        )
        fill(store)
        store.clear_counts()
        return store

    server = Server(open_store, tmp_path)
    with server:
        yield server


@dataclass
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def typed(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Return what types a command to the server, and returns how it ended."""
    for name in [name for name in os.environ if name.startswith("EMBSTORE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")

    def typing(*words: str) -> Ended:
        status = main([*words, "--address", server.address])
        said = capsys.readouterr()
        return Ended(status, said.out, said.err)

    return typing


def saved_profile(path: Path, table: str = "ads", keys: Any = range(500)) -> str:
    made = np.array(keys, np.int64)
    counts = 1000 - np.arange(len(made), dtype=np.int64)
    table_profile = TableProfile(table, 0, made, counts, int(counts.sum()))
    Profile({table: table_profile}, rate=0.5).save(path)
    return str(path)


def saved_hot_set(path: Path, version: int = 1, **keys: Any) -> str:
    HotSet({name: np.array(k, np.int64) for name, k in keys.items()}, version, 0, 96).save(path)
    return str(path)


# Profiles


def test_a_counted_profile_is_exported(
    server: Server, typed: Callable[..., Ended], tmp_path: Path
) -> None:
    server.on_engine(lambda store: store.table("ads").lookup([1, 2, 2]))
    file = tmp_path / "out.profile"
    ended = typed("export-profile", "-o", str(file))
    assert ended.status == 0
    assert ended.out == (f"{file}: 2 rows of 2 tables, 3 accesses counted at a rate of 1\n")
    assert Profile.load(file).tables["ads"].counts.tolist() == [1, 2]
    told = typed("export-profile", "-o", str(file), "--json").document
    assert told["tables"]["ads"] == {"rows": 2, "accesses": 3, "error": 0}


def test_a_profile_is_imported_and_exported_again(
    typed: Callable[..., Ended], tmp_path: Path
) -> None:
    file = saved_profile(tmp_path / "in.profile", "C1")
    ended = typed("import-profile", file, "--rename", "C1=ads")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("imported 500 rows of 1 tables, 375,250 accesses")
    back = tmp_path / "back.profile"
    assert typed("export-profile", "-o", str(back), "--source", "imported").status == 0
    assert len(Profile.load(back).tables["ads"].keys) == 500
    shown = typed("stats").out
    assert "frequency" in shown
    assert "500" in shown[shown.index("profiled rows") :].splitlines()[0]


def test_wrong_profiles_are_told_with_their_files(
    typed: Callable[..., Ended], tmp_path: Path
) -> None:
    other = saved_profile(tmp_path / "other.profile", "items")
    ended = typed("import-profile", other)
    assert ended.status == exits.NOT_FOUND
    assert "the profile has table 'items'" in ended.err
    beyond = saved_profile(tmp_path / "beyond.profile", keys=[999, 1000])
    assert typed("import-profile", beyond).status == exits.USAGE
    (tmp_path / "text").write_text("no profile")
    ended = typed("import-profile", str(tmp_path / "text"))
    assert ended.status == exits.USAGE
    assert "text: expected an embstore profile" in ended.err
    ended = typed("import-profile", str(tmp_path / "nowhere"))
    assert (ended.status, "nowhere" in ended.err) == (exits.USAGE, True)
    ended = typed("import-profile", other, "--rename", "items")
    assert ended.status == exits.USAGE
    assert "--rename: expected A=B" in ended.err
    ended = typed("export-profile", "-o", str(tmp_path / "x"), "--source", "guessed")
    assert (ended.status, (tmp_path / "x").exists()) == (exits.USAGE, False)
    ended = typed("export-profile", "-o", str(tmp_path / "no" / "where"))
    assert ended.status == exits.USAGE
    assert "--output: expected a regular file" in ended.err


def test_export_needs_a_file(typed: Callable[..., Ended]) -> None:
    assert typed("export-profile").status == exits.USAGE


# Warming


def test_the_cache_is_warmed(typed: Callable[..., Ended], tmp_path: Path) -> None:
    assert typed("warm").out == "warmed: 0 rows brought in\n"
    typed("import-profile", saved_profile(tmp_path / "in.profile"))
    ended = typed("warm", "--share", "0.9")
    assert (ended.status, ended.out, ended.err) == (0, "warmed: 500 rows brought in\n", "")
    assert typed("warm", "--json").document == {"rows": 500}
    shown = typed("stats").out
    assert "500 of 500 rows" in shown
    ended = typed("warm", "--share", "2")
    assert ended.status == exits.USAGE
    assert "share" in ended.err


# Hot sets


def test_a_hot_set_is_pinned_and_unpinned(typed: Callable[..., Ended], tmp_path: Path) -> None:
    file = saved_hot_set(tmp_path / "hot", 3, ads=[1, 2, 5])
    ended = typed("pin-hotset", file)
    assert (ended.status, ended.out) == (0, "pinned version 3: 3 of 3 rows, 96 B\n")
    assert "version 3, 3 of 3 rows" in typed("stats").out
    older = saved_hot_set(tmp_path / "older", 2, ads=[1])
    ended = typed("pin-hotset", older)
    assert ended.status == exits.USAGE
    assert "version above 3" in ended.err
    newer = saved_hot_set(tmp_path / "newer", 4, ads=[1])
    told = typed("pin-hotset", newer, "--json").document
    assert told == {"version": 4, "rows": 1, "bytes": 96, "pinned_rows": 1}
    assert typed("unpin-hotset").out == "no hot set is pinned\n"
    assert typed("unpin-hotset").status == 0


def test_wrong_hot_sets_are_told(typed: Callable[..., Ended], tmp_path: Path) -> None:
    other = saved_hot_set(tmp_path / "other", items=[1])
    assert typed("pin-hotset", other).status == exits.NOT_FOUND
    beyond = saved_hot_set(tmp_path / "beyond", ads=[1000])
    assert typed("pin-hotset", beyond).status == exits.USAGE
    profile = saved_profile(tmp_path / "in.profile")
    ended = typed("pin-hotset", profile)
    assert ended.status == exits.USAGE
    assert "in.profile: expected an embstore hot set" in ended.err


# Help


def test_help_names_the_commands(typed: Callable[..., Ended]) -> None:
    for command in ("export-profile", "import-profile", "warm", "pin-hotset", "unpin-hotset"):
        ended = typed(command, "--help")
        assert ended.status == 0
        assert command in ended.out
