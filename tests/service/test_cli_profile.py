"""The commands profile, size and hotset: from files to answers, and how wrong use ends."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from embstore import hash_ids
from embstore.profiles.hotset import HotSet
from embstore.profiles.profile import Profile
from embstore.version import pip_install
from embstore_server.cli import exits, main
from embstore_server.sizing.prediction import hit_rates
from embstore_tools.demo import synthetic
from embstore_tools.demo.columns import scaled_rows, table_name
from tests.service.shell import Terminal

ROWS, SAMPLES = 3000, 20_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the same skewed samples twice: day.tsv (Criteo) and day.parquet."""
    folder = tmp_path_factory.mktemp("samples")
    rng = np.random.default_rng(5)
    ads = (ROWS * rng.random(SAMPLES) ** 4).astype(np.int64)
    tags = pa.array([[int(key) % 20] * (int(key) % 3) for key in ads])
    parquet.write_table(
        pa.table({"ad": ads, "tags": tags, "price": ads * 0.5}), folder / "day.parquet"
    )
    synthetic.write(folder / "day.tsv", samples=2000, rows=scaled_rows(0.001))
    return folder


@pytest.fixture(scope="module")
def profile_path(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a profile of day.parquet."""
    path = tmp_path_factory.mktemp("profiles") / "day.profile"
    words = ["--table", "ad=ads", "--table", "tags=tags", "--rows", f"ads={ROWS}"]
    words += ["--rows", "tags=20", "--batch", "500", "-o", str(path)]
    assert main(["profile", str(folder / "day.parquet"), *words]) == 0
    return path


# profile


def test_profile_of_criteo_has_the_tables_of_the_demo(shell, folder, tmp_path):
    path = tmp_path / "out.profile"
    found = shell("profile", folder / "day.tsv", "-o", path, "--json").document
    assert [*found["tables"]] == [table_name(column) for column in range(26)]
    assert {table["accesses"] for table in found["tables"].values()} == {2000}
    assert (found["samples"], found["counted_samples"], found["kept_samples"]) == (2000, 2000, 2000)
    assert (found["path"], found["file_bytes"]) == (str(path), path.stat().st_size)
    assert found["recorded"]["calls"] == 1
    assert Profile.load(path).tables.keys() == found["tables"].keys()


def test_profile_counts_columns_as_tables(shell, folder, tmp_path):
    path, files = tmp_path / "p", [folder / "day.parquet"] * 2
    words = ["--table", "ad=ads", "--table", "tags=a/tags", "--hash-rows", "ads=1000"]
    found = shell("profile", *files, *words, "-o", path, "--json").document
    table = Profile.load(path).tables["ads"]
    ads = parquet.read_table(folder / "day.parquet")["ad"].to_numpy()
    keys = hash_ids(ads, feature="ads", rows=1000).tolist()
    true = {key: 2 * times for key, times in Counter(keys).items()}
    assert dict(zip(table.keys.tolist(), table.counts.tolist(), strict=True)) == true
    assert found["tables"]["ads"]["rows"] == 1000
    assert found["tables"]["a/tags"]["rows"] is None
    assert found["tables"]["ads"]["coverage"]["accesses"][-1] == 1


def test_sparse_keys_are_hashes_of_64_bits_or_ids_as_they_are(shell, folder, tmp_path):
    words = ["profile", folder / "day.parquet", "--table", "ad=ads", "-o", tmp_path / "p"]
    found = shell(*words, "--hash-rows", "ads=sparse", "--json").document["tables"]["ads"]
    table = Profile.load(tmp_path / "p").tables["ads"]
    ads = parquet.read_table(folder / "day.parquet")["ad"].to_numpy()
    true = Counter(hash_ids(ads, feature="ads").tolist())
    assert dict(zip(table.keys.tolist(), table.counts.tolist(), strict=True)) == true
    assert (found["rows"], table.rows) == (None, 0) and table.keys[0] < 0
    parquet.write_table(pa.table({"ad": [-2, -(2**63), 0, 7, 7]}), tmp_path / "ids.parquet")
    words[1] = tmp_path / "ids.parquet"
    assert shell(*words).status == exits.USAGE
    assert shell(*words, "--rows", "ads=sparse").status == 0
    table = Profile.load(tmp_path / "p").tables["ads"]
    assert table.keys.tolist() == [-(2**63), -2, 0, 7]
    assert table.counts.tolist() == [1, 1, 1, 2]


def test_profile_by_a_rate_is_the_same_each_time(shell, folder, tmp_path):
    words = ["profile", folder / "day.parquet", "--table", "ad=ads", "--rate", "0.05"]
    found = shell(*words, "--seed", "7", "-o", tmp_path / "a", "--json").document
    assert 0.04 < found["counted_samples"] / SAMPLES < 0.06
    assert (found["rate"], found["seed"]) == (0.05, 7)
    for name, seed in (("b", "7"), ("c", "8")):
        assert shell(*words, "--seed", seed, "-o", tmp_path / name).status == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()


def test_a_column_of_text_files_that_is_no_integer_is_named_with_what_takes_it(shell, tmp_path):
    (tmp_path / "x.csv").write_text("user,item\n1,2\n4,5.0\n")
    words = ["profile", tmp_path / "x.csv", "--table", "item=i", "-o", tmp_path / "p"]
    ended = shell(*words)
    assert ended.status == exits.USAGE
    assert "expected column 'item' to be of integers in decimal digits, found '5.0'" in ended.err
    assert "in line 3" in ended.err
    assert "--hash-rows" in ended.err
    assert shell(*words, "--hash-rows", "i=1000").status == 0


def test_text_ids_are_hashed_as_the_refusal_says(shell, folder, tmp_path):
    ads = parquet.read_table(folder / "day.parquet")["ad"].to_pylist()
    words = pa.array([None if ad == 0 else f"{ad:x}x" for ad in ads])
    parquet.write_table(pa.table({"ad": words}), tmp_path / "words.parquet")
    rest = ["--table", "ad=ads", "-o", tmp_path / "p"]
    refused = shell("profile", tmp_path / "words.parquet", *rest)
    assert refused.status == exits.USAGE and "column 'ad' to be of integers" in refused.err
    (hint,) = re.findall(r"; (--[a-z-]+) takes text", refused.err)
    assert shell("profile", tmp_path / "words.parquet", *rest, hint, "ads=1000000").status == 0
    table = Profile.load(tmp_path / "p").tables["ads"]
    true = Counter(hash_ids(words, feature="ads", rows=1_000_000).tolist())
    assert dict(zip(table.keys.tolist(), table.counts.tolist(), strict=True)) == true


def test_categories_of_criteo_are_hashed_as_integers(shell, folder, tmp_path):
    words = ["profile", folder / "day.tsv", "-o", tmp_path / "p", "--table", "C3=c"]
    assert shell(*words).status == 0
    plain = Profile.load(tmp_path / "p").tables["c"]
    assert shell(*words, "--hash-rows", "c=1048576").status == 0
    table = Profile.load(tmp_path / "p").tables["c"]
    keys = hash_ids(plain.keys, feature="c", rows=1 << 20)
    true = Counter(dict(zip(keys.tolist(), plain.counts.tolist(), strict=True)))
    assert len(true) == len(keys), "no two share a row here"
    assert dict(zip(table.keys.tolist(), table.counts.tolist(), strict=True)) == true


def test_profile_says_how_many_hashed_ids_share_rows(shell, folder, tmp_path):
    words = ["profile", folder / "day.parquet", "--table", "ad=ads", "--table", "tags=tags"]
    words += ["-o", tmp_path / "p"]
    distinct = shell(*words, "--json").document["tables"]["ads"]["distinct"]
    for rows in (distinct // 2, 10 * distinct):
        hashed = shell(*words, "--hash-rows", f"ads={rows}", "--json").document["tables"]["ads"]
        assert hashed["ids"] == pytest.approx(distinct, rel=0.1)
        sharing = 1 - np.exp(-distinct / rows)
        assert hashed["ids_sharing_a_row"] == pytest.approx(sharing, rel=0.1)
    shown = shell(*words, "--hash-rows", f"ads={rows}").out
    assert "ids, about" in shown and f"{hashed['ids_sharing_a_row']:.2%}" in shown
    assert "share a row" not in shell(*words).out
    full = shell(*words, "--hash-rows", "ads=20", "--json").document["tables"]["ads"]
    assert (full["ids"], full["ids_sharing_a_row"]) == (None, None)


def test_profile_shows_skew_and_coverage(shell, folder, tmp_path):
    words = ["--table", "ad=ads", "--table", "tags=tags", "-o", tmp_path / "p"]
    ended = shell("profile", folder / "day.parquet", *words, "--picture", tmp_path / "p.png")
    assert (ended.status, ended.err) == (0, "")
    for word in ("ads", "20,000", "skew", "100 %", "share of rows", "20,000 of 20,000 samples"):
        assert word in ended.out
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_profile_draws_its_progress_on_a_terminal(shell, folder, tmp_path, monkeypatch):
    drawn = Terminal()
    monkeypatch.setattr(sys, "stderr", drawn)
    monkeypatch.setenv("TERM", "xterm")
    ended = shell("profile", folder / "day.tsv", "-o", tmp_path / "p", "--json")
    assert ended.document["samples"] == 2000
    assert "MiB read" in drawn.getvalue()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["absent.tsv"], "expected a readable file, found absent.tsv: No such file"),
        (["."], "expected a file, found ."),
        (["{}/day.tsv", "absent.tsv"], "expected a readable file, found absent.tsv"),
        (["{}/day.tsv", "--table", "C27=a"], "expected a column from C1 to C26"),
        (["{}/day.tsv", "--table", "C1"], "--table: expected COLUMN=NAME, found 'C1'"),
        (["{}/day.tsv", "--table", "C1="], "--table: expected COLUMN=NAME, found 'C1='"),
        (["{}/day.tsv", "--table", "C1=A B"], "expected a table name"),
        (
            ["{}/day.tsv", "--table", "C1=a", "--table", "C1=b"],
            "each COLUMN=NAME once, found C1 twice",
        ),
        (["{}/day.parquet"], "expected --table COLUMN=NAME for a Parquet file"),
        (["{}/day.parquet", "--table", "x=a"], "its columns are ad, tags, price"),
        (["{}/day.parquet", "--table", "price=a"], "to be of integers or lists of integers"),
        (["{}/day.parquet", "--table", "ad=a", "--rows", "a=9"], "expected ids below 9, found "),
        (["{}/day.parquet", "--table", "ad=a", "--rows", "b=9"], "one of the tables a, found 'b'"),
        (["{}/day.parquet", "--table", "ad=a", "--rows", "a"], "--rows: expected NAME=N"),
        (["{}/day.parquet", "--table", "ad=a", "--hash-rows", "a=0"], "expected rows from 1 to"),
        (
            ["{}/day.parquet", "--table", "ad=a", "--hash-rows", "a=9", "--rows", "a=9"],
            "found them given both with hashing and without",
        ),
        (["{}/day.parquet", "--table", "ad=a", "--rate", "0"], "expected a rate above 0"),
        (["{}/day.parquet", "--table", "ad=a", "--batch", "0"], "expected a batch of at least 1"),
        (["{}/day.parquet", "--table", "ad=a", "--keys-max", "1"], "at least 2 keys"),
        (["{}/day.parquet", "--table", "ad=a", "--picture", "no/x.png"], "--picture: expected a"),
        (["{}/day.parquet", "--table", "ad=a", "-o", "no/x"], "--output: expected a regular"),
        (["{}/day.parquet", "--table", "ad=a", "--seed", str(2**63)], "seed"),
    ],
)
def test_profile_refuses(words, said, shell, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = shell("profile", "-o", "out.profile", *(word.format(folder) for word in words))
    assert (ended.status, ended.out) == (exits.USAGE, "")
    assert ended.err.startswith("error: ")
    assert said in ended.err
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("flag", ["--output", "--picture"])
def test_what_is_no_file_is_not_replaced(flag, shell, folder, tmp_path):
    """A device was replaced by the profile, /dev/full among others. (A pipe is none either.)"""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        words = ["--table", "ad=ads", "-o", tmp_path / "out.profile", flag, path]
        ended = shell("profile", folder / "day.parquet", *words)
        assert (ended.status, ended.out) == (exits.USAGE, "")
        assert f"{flag}: expected a regular file" in ended.err
    assert pipe.is_fifo()
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link"}


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--output", ["profile", "IN", "--table", "ad=ads", "-o", "IN"]),
        ("--output", ["profile", "IN", "--table", "ad=ads", "-o", "LINK"]),
        ("--picture", ["profile", "IN", "--table", "ad=ads", "-o", "OUT", "--picture", "IN"]),
        ("--picture", ["profile", "IN", "--table", "ad=ads", "-o", "OUT", "--picture", "OUT"]),
        ("--output", ["hotset", "--profile", "PROFILE", "--budget", "4KiB", "-o", "PROFILE"]),
        ("--picture", ["size", "--profile", "PROFILE", "--picture", "PROFILE"]),
    ],
)
def test_no_command_writes_over_its_own_input(flag, words, shell, folder, profile_path, tmp_path):
    paths = {
        "IN": tmp_path / "in.parquet",
        "PROFILE": tmp_path / "in.profile",
        "LINK": tmp_path / "link",
        "OUT": tmp_path / "out",
    }
    paths["IN"].write_bytes((folder / "day.parquet").read_bytes())
    paths["PROFILE"].write_bytes(profile_path.read_bytes())
    paths["LINK"].symlink_to(paths["IN"])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    ended = shell(*(paths.get(word, word) for word in words))
    assert (ended.status, ended.out) == (exits.USAGE, "")
    assert f"{flag}: expected a file of its own" in ended.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("pyarrow", ["day.parquet", "--table", "ad=ads"]),
        ("matplotlib", ["day.tsv", "--picture", "x.png"]),
    ],
)
def test_what_is_missing_names_the_extra(module, words, shell, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, module, None)
    ended = shell("profile", *words, "-o", "refused.profile")
    assert ended.status == exits.USAGE
    assert pip_install("data") in ended.err
    assert not Path("refused.profile").exists()


def test_criteo_is_profiled_without_the_extra(folder, tmp_path):
    code = f"""if True:
        import sys
        for module in ("pyarrow", "matplotlib", "plotext"):
            sys.modules[module] = None
        from embstore_server.cli import main
        sys.exit(main(["profile", {str(folder / "day.tsv")!r}, "-o", {str(tmp_path / "p")!r}]))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    assert "a plot here needs more" in done.stdout


# size


def test_size_gives_hit_rates_and_traffic(shell, profile_path):
    found = shell("size", "--profile", profile_path, "--json").document
    assert found["rows"] == ROWS + 20
    assert found["method"] == "recorded"
    assert found["row_bytes"] == 80, "16 weights and an accumulator, padded"
    assert [*found["policies"]] == ["lru", "lfu", "rank"]
    rates = hit_rates(Profile.load(profile_path), found["slots"], "lru")
    assert found["policies"]["lru"]["by_access"] == rates.by_access.tolist()
    assert found["policies"]["lru"]["by_unique"] == rates.by_unique.tolist()
    assert found["cache_bytes"] == sorted(found["cache_bytes"])
    ahead = found["lookahead"]
    assert ahead["steps"] == 16
    assert ahead["unique_rows"] < ahead["working_set_rows"] < ROWS + 20
    assert ahead["fetched_bytes"][0] == ahead["fetched_rows"][0] * 80


def test_size_answers_how_much_cache_is_needed(shell, profile_path):
    words = ["size", "--profile", profile_path, "--policy", "lru", "--target-hit-rate", "0.8"]
    [needed] = shell(*words, "--json").document["needed"].values()
    slots = needed["slots"]
    below, at = hit_rates(Profile.load(profile_path), [slots * 9 // 10, slots], "lru").by_access
    assert below < 0.8 < at + 0.01
    shown = shell(*words).out.splitlines()[-1]
    assert shown.startswith("80.0% of accesses hit with a cache of ")
    assert f"under lru ({slots:,} slots, " in shown


def test_size_says_when_no_cache_is_enough(shell, profile_path):
    words = ["size", "--profile", profile_path, "--policy", "lfu", "--target-hit-rate", "1"]
    assert shell(*words, "--json").document["needed"] == {"lfu": None}
    assert "with room for all rows, not 100.0%" in shell(*words).out


def test_size_of_one_call_says_how_to_have_more(shell, folder, tmp_path):
    """All hit rates were 0.0 %, without a reason."""
    words = ["profile", folder / "day.tsv", "-o", tmp_path / "p"]
    assert shell(*words).status == 0
    said = shell("size", "--profile", tmp_path / "p").out.splitlines()[-1]
    assert said.startswith("all samples are one recorded call")
    (hint,) = re.findall(r"--batch \d+", said)
    assert shell(*words, *hint.split()).status == 0
    sized = "size", "--profile", tmp_path / "p", "--policy", "lru"
    assert shell(*sized, "--json").document["policies"]["lru"]["by_access"][-1] > 0.1
    assert "lru" in shell(*sized).out.splitlines()[-1]


def test_size_of_other_rows(shell, profile_path):
    words = ["size", "--profile", profile_path, "--policy", "lru", "--json"]
    wide = shell(*words, "--dim", "64", "--optimizer", "adam").document
    narrow = shell(*words, "--row-bytes", "60").document
    assert (wide["row_bytes"], narrow["row_bytes"]) == (64 * 3 * 4, 64)
    assert wide["slots"] == narrow["slots"]
    assert wide["cache_bytes"][-1] > 6 * narrow["cache_bytes"][-1]


def test_size_of_two_levels(shell, profile_path):
    """Both hit as one cache that is as large as both; keys of level two are in the GPU's memory."""
    words = ["size", "--profile", profile_path, "--policy", "lru", "--row-bytes", "64"]
    alone = shell(*words, "--json").document
    words += ["--host-cache-bytes", "6400"]
    found = shell(*words, "--json").document
    below = [min(100, found["rows"] - slots) for slots in found["slots"]]
    assert found["host_rows"] == below
    assert found["host_pinned_bytes"] == [64 * rows for rows in below]
    both = [slots + rows for slots, rows in zip(found["slots"], below, strict=True)]
    rates = hit_rates(Profile.load(profile_path), both, "lru").by_access
    assert found["policies"]["lru"]["both_by_access"] == rates.tolist()
    for name in ("by_access", "by_unique"):
        assert found["policies"]["lru"][name] == alone["policies"]["lru"][name]
    keys = [a - b for a, b in zip(found["cache_bytes"], alone["cache_bytes"], strict=True)]
    assert keys == found["host_key_bytes"]
    assert alone["host_rows"] == [0] * len(below)
    shown = shell(*words).out
    for word in ("level two", "lru, both", "up to 100 rows in 6.25 KiB of pinned memory"):
        assert word in shown
    assert "bytes for a row of 64" in shown
    assert "both" not in shell("size", "--profile", profile_path).out


def test_size_shows_a_table_a_plot_and_a_picture(shell, profile_path, tmp_path):
    words = ["--profile", profile_path, "--lookahead", "3", "--picture", tmp_path / "s.png"]
    ended = shell("size", *words)
    assert (ended.status, ended.err) == (0, "")
    for word in ("fetched a step", "* lru", "o lfu", "x rank", "100.00%", "3 steps together"):
        assert word in ended.out
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


def test_size_from_counts_alone(shell, profile_path, tmp_path):
    whole = Profile.load(profile_path)
    Profile(whole.tables).save(tmp_path / "counts")
    words = ["size", "--profile", tmp_path / "counts"]
    found = shell(*words, "--json").document
    assert (found["method"], found["lookahead"]) == ("counted", None)
    assert found["policies"]["lru"]["by_unique"][0] is None
    assert "no recorded calls" in shell(*words).out


# hotset


def test_hotset_is_chosen_and_written(shell, profile_path, tmp_path):
    path = tmp_path / "h"
    words = ["--budget", "16KiB", "-o", path, "--version", "3", "--row-bytes", "16"]
    found = shell("hotset", "--profile", profile_path, *words, "--json").document
    hot = HotSet.load(path)
    assert (hot.version, hot.row_count, hot.bytes) == (3, found["rows"], found["rows"] * 16)
    assert hot.bytes <= found["budget_bytes"] == 16384
    table = Profile.load(profile_path).tables["ads"]
    assert np.array_equal(hot.tables["ads"], table.keys[table.counts >= found["threshold"]])
    taken = int(table.counts[table.counts >= found["threshold"]].sum())
    assert found["tables"]["ads"]["accesses"] == taken / table.accesses
    assert found["samples_counted"] is True
    assert 0 < found["samples"] < found["accesses"] < 1


def test_hotset_shows_what_it_covers(shell, profile_path, folder, tmp_path):
    ended = shell("hotset", "--profile", profile_path, "--budget", "40KB")
    assert (ended.status, ended.err) == (0, "")
    for word in ("rows of 80 bytes are hot, ", "accesses or more", "kept samples"):
        assert word in ended.out
    words = ["--table", "ad=ads", "--rate", "0.25", "-o", tmp_path / "p"]
    assert shell("profile", folder / "day.parquet", *words).status == 0
    shown = shell("hotset", "--profile", tmp_path / "p", "--budget", "40KB").out
    assert "accesses or more, counted in 0.25 of the samples" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hotset", "--budget", "79"], "expected a budget of at least one row (80 bytes)"),
        (["hotset", "--budget", "much"], "--budget: expected a number of bytes"),
        (["hotset", "--budget", "1MiB", "--dim", "8", "--row-bytes", "8"], "--row-bytes replaces"),
        (["hotset", "--budget", "1MiB", "--optimizer", "sgdd"], "--optimizer: expected one of"),
        (["hotset", "--budget", "1MiB", "-o", "no/such/folder"], "--output: expected a regular"),
        (
            ["hotset", "--budget", "9" * 26],
            "the budget in bytes to be an integer from 1 to 92233720",
        ),
        (["hotset", "--budget", "1MiB", "--version", "9" * 20], "from 1 to 9223372036854775807"),
        (
            ["hotset", "--budget", "1MiB", "--row-bytes", "49153"],
            "--row-bytes: expected at most 49152",
        ),
        (["size", "--row-bytes", "9" * 17], "--row-bytes: expected at most 49152, found 999"),
        (["size", "--dim", "100000000"], "--dim: expected at most 4096, found 100000000"),
        (["size", "--policy", "fifo"], "lru, lfu, rank"),
        (["size", "--target-hit-rate", "0"], "--target-hit-rate: expected a share"),
        (["size", "--warm-up", "2"], "expected warm_up"),
        (["size", "--lookahead", "41"], "expected steps from 1 to the 40 recorded, found 41"),
        (["size", "--picture", "no/such.png"], "--picture: expected a regular file"),
    ],
)
def test_size_and_hotset_refuse(words, said, shell, profile_path):
    ended = shell(*words, "--profile", profile_path)
    assert (ended.status, ended.out) == (exits.USAGE, "")
    assert ended.err.startswith("error: ")
    assert said in ended.err


@pytest.mark.parametrize("words", [["size"], ["hotset", "--budget", "1MiB"]])
@pytest.mark.parametrize("name", ["absent", "day.tsv", "day.parquet"])
def test_files_that_are_no_profile(words, name, shell, folder):
    ended = shell(*words, "--profile", folder / name)
    assert (ended.status, ended.out) == (exits.USAGE, "")
    assert str(folder / name) in ended.err


def test_an_empty_profile_has_no_size(shell, tmp_path):
    Profile({}).save(tmp_path / "p")
    ended = shell("size", "--profile", tmp_path / "p")
    assert ended.status == exits.USAGE
    assert "expected a profile with accesses, found none counted at a rate of 1\n" in ended.err


def test_size_of_a_rate_that_counted_nothing(shell, folder, tmp_path):
    """Calls are recorded whatever the rate: shares of no rows were a ZeroDivisionError."""
    words = ["--table", "ad=ads", "--rate", "1e-30", "-o", tmp_path / "p"]
    assert shell("profile", folder / "day.parquet", *words).status == 0
    for more in ([], ["--json"]):
        ended = shell("size", "--profile", tmp_path / "p", *more)
        assert (ended.status, ended.out) == (exits.USAGE, "")
        assert "counted at a rate of 1e-30: profile again at a higher --rate" in ended.err
    hot = shell("hotset", "--profile", tmp_path / "p", "--budget", "1MiB", "--json").document
    assert hot["rows"] == 0
