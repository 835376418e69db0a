"""The commands for profiles, hot sets and warm-up, against a server that runs."""

from pathlib import Path
from typing import Any

from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile
from embstore_server.cli import exits
from tests.service.frequency_samples import falling, hot_set_of, profile_of


def saved_profile(path: Path, table: str = "ads") -> Path:
    profile_of({table: falling(500)}, rate=0.5).save(path)
    return path


def saved_hot_set(path: Path, version: int = 1, **keys: Any) -> Path:
    hot_set = hot_set_of(version, **keys)
    HotSet(hot_set.tables, version, 0, 96).save(path)
    return path


# Profiles


def test_a_counted_profile_is_exported(server, typed, tmp_path):
    server.on_engine(lambda store: store.table("ads").lookup([1, 2, 2]))
    file = tmp_path / "out.profile"
    ended = typed("export-profile", "-o", str(file))
    assert ended.status == 0
    assert ended.out == (f"{file}: 2 rows of 2 tables, 3 accesses counted at a rate of 1\n")
    assert Profile.load(file).tables["ads"].counts.tolist() == [1, 2]
    told = typed("export-profile", "-o", str(file), "--json").document
    assert told["tables"]["ads"] == {"rows": 2, "accesses": 3, "error": 0}


def test_a_profile_is_imported_and_exported_again(typed, tmp_path):
    file = saved_profile(tmp_path / "in.profile", "C1")
    ended = typed("import-profile", file, "--rename", "C1=ads")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("imported 500 rows of 1 tables, 1,252,500 accesses")
    back = tmp_path / "back.profile"
    assert typed("export-profile", "-o", str(back), "--source", "imported").status == 0
    assert len(Profile.load(back).tables["ads"].keys) == 500
    tables = typed("stats", "--json").document["frequency"]["tables"]
    assert tables["ads"]["profile_rows"] == 500


def test_wrong_profiles_are_told_with_their_files(typed, tmp_path):
    other = saved_profile(tmp_path / "other.profile", "items")
    (tmp_path / "text").write_text("no profile")
    nowhere, export = tmp_path / "no" / "where", ("export-profile", "-o")
    for words, status, said in (
        (("import-profile", other), exits.NOT_FOUND, "the profile has table 'items'"),
        (("import-profile", tmp_path / "text"), exits.USAGE, "text: expected an embstore profile"),
        (("import-profile", nowhere), exits.USAGE, str(nowhere)),
        (("import-profile", other, "--rename", "items"), exits.USAGE, "--rename: expected A=B"),
        ((*export, tmp_path / "x", "--source", "guessed"), exits.USAGE, "guessed"),
        ((*export, nowhere), exits.USAGE, "--output: expected a regular file"),
        (("export-profile",), exits.USAGE, "-o"),
    ):
        ended = typed(*words)
        assert (ended.status, said in ended.err) == (status, True), ended
    assert not (tmp_path / "x").exists()


# Warming


def test_the_cache_is_warmed(typed, tmp_path):
    assert typed("warm").out == "warmed: 0 rows brought in\n"
    typed("import-profile", saved_profile(tmp_path / "in.profile"))
    ended = typed("warm", "--share", "0.9")
    assert (ended.status, ended.out, ended.err) == (0, "warmed: 500 rows brought in\n", "")
    assert typed("warm", "--json").document == {"rows": 500}
    warming = typed("stats", "--json").document["frequency"]["warming"]
    assert (warming["rows"], warming["of"]) == (500, 500)
    ended = typed("warm", "--share", "2")
    assert ended.status == exits.USAGE
    assert "share" in ended.err


# Hot sets


def test_a_hot_set_is_pinned_and_unpinned(typed, tmp_path):
    file = saved_hot_set(tmp_path / "hot", 3, ads=[1, 2, 5])
    ended = typed("pin-hotset", file)
    assert (ended.status, ended.out) == (0, "pinned version 3: 3 of 3 rows, 96 B\n")
    pinned = typed("stats", "--json").document["frequency"]["hot_set"]
    assert (pinned["version"], pinned["pinned_rows"]) == (3, 3)
    newer = saved_hot_set(tmp_path / "newer", 4, ads=[1])
    told = typed("pin-hotset", newer, "--json").document
    assert told == {"version": 4, "rows": 1, "bytes": 96, "pinned_rows": 1}
    assert typed("unpin-hotset").out == "no hot set is pinned\n"
    assert typed("unpin-hotset").status == 0


def test_wrong_hot_sets_are_told(typed, tmp_path):
    other = saved_hot_set(tmp_path / "other", items=[1])
    assert typed("pin-hotset", other).status == exits.NOT_FOUND
    ended = typed("pin-hotset", saved_profile(tmp_path / "in.profile"))
    assert ended.status == exits.USAGE
    assert "in.profile: expected an embstore hot set" in ended.err
