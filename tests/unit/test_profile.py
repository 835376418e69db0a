"""Profiles: what they tell, and files that are no profiles, not any more, or not quite."""

import io
import json
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.errors import InvalidArgumentError, StorageError
from embstore.profiles.profile import (
    Profile,
    Samples,
    TableProfile,
    Trace,
    spatial_hash,
    spatial_limit,
)
from tests.unit.profile_samples import (
    archive_of,
    int64s,
    members_of,
    table_of,
    trace_of,
    whole_profile,
)

SEED = 61
INT64_MAX = 2**63 - 1


def same(one, other):
    return one.to_bytes() == other.to_bytes()


def test_ranks_go_by_count_and_then_by_key():
    keys, counts = table_of({4: 2, 1: 9, 9: 2, 2: 2, 7: 30}).ranked()
    assert keys.tolist() == [7, 1, 2, 4, 9]
    assert counts.tolist() == [30, 9, 2, 2, 2]


def test_key_bound_covers_rows_and_keys():
    assert table_of({}).key_bound == 0
    assert table_of({4: 1}).key_bound == 5
    assert table_of({4: 1}, rows=9).key_bound == 9
    assert table_of({INT64_MAX: 1}, rows=9).key_bound == 2**63


def test_shares_of_the_most_accessed():
    table = table_of({0: 1, 1: 6, 2: 2, 3: 1}, rows=100)
    assert [table.top_share(n) for n in (-1, 0, 1, 2, 4, 99)] == [0, 0, 0.6, 0.8, 1, 1]
    assert table.coverage([0, 0.01, 0.02, 0.04, 1]).tolist() == [0, 0.6, 0.8, 1, 1]


def test_coverage_is_of_the_keys_where_rows_are_unknown():
    assert table_of({0: 1, 1: 6, 2: 2, 3: 1}).coverage([0.25, 0.5, 1]).tolist() == [0.6, 0.8, 1]


def test_accesses_that_a_sketch_let_go_are_in_the_whole():
    table = table_of({0: 6}, accesses=10, error=2)
    assert (table.top_share(1), table.coverage([1.0]).tolist()) == (0.6, [0.6])


def test_a_table_without_accesses_has_no_shares():
    table = table_of({}, rows=9)
    assert (table.top_share(3), table.zipf_exponent()) == (0, 0)
    assert table.coverage([0.5, 1]).tolist() == [0, 0]


@pytest.mark.parametrize("skew", [0.0, 0.6, 1.05, 1.4])
def test_skew_of_counts_that_follow_a_power(skew):
    counts = np.rint(1e9 * np.arange(1, 20_001) ** -skew).astype(np.int64)
    table = TableProfile("v", 0, np.arange(20_000), counts, int(counts.sum()))
    assert table.zipf_exponent() == pytest.approx(skew, abs=0.01)


def test_too_few_counts_have_no_skew():
    assert table_of({0: 100}).zipf_exponent() == 0
    assert table_of({0: 9, 1: 3}).zipf_exponent() == 0


WRONG_TABLES = {
    "name": {"name": ""},
    "rows": {"rows": -1},
    "rows ": {"rows": 2**40 + 1},
    "rows  ": {"rows": True},
    "keys": {"keys": int64s(2, 1)},
    "keys ": {"keys": int64s(1, 1)},
    "keys  ": {"keys": int64s(-1, 1)},
    "keys   ": {"keys": np.array([1.0, 2.0])},
    "keys    ": {"keys": int64s(1, 2).reshape(1, 2)},
    "keys     ": {"keys": [1, 2]},
    "one length": {"keys": int64s(1)},
    "counts": {"counts": int64s(1, 0)},
    "counts ": {"counts": np.ones(2, np.int32)},
    "accesses": {"accesses": 2},
    "accesses ": {"accesses": 5.0},
    "accesses  ": {"counts": int64s(INT64_MAX, INT64_MAX)},
    "error": {"error": -1},
}


@pytest.mark.parametrize("wrong", WRONG_TABLES)
def test_a_wrong_table_is_refused(wrong):
    facts = {"name": "v", "rows": 0, "keys": int64s(1, 2), "counts": int64s(1, 2), "accesses": 3}
    TableProfile(**facts)
    with pytest.raises(InvalidArgumentError, match=wrong.strip()):
        TableProfile(**{**facts, **WRONG_TABLES[wrong]})


WRONG_TRACES = {
    "rate": {"rate": float("nan")},
    "rate ": {"rate": 0.0},
    "rate  ": {"rate": 1.5},
    "tables": {"tables": ["v", "w"]},
    "each table once": {"tables": ("v", "v")},
    "call below 2": {"calls": 2},
    "calls in their order": {"call": np.array([2, 0, 0], np.int32)},
    "call": {"call": int64s(0, 0, 2)},
    "table below 2": {"table": np.array([0, 2, 0], np.int16)},
    "table of at least 0": {"table": np.array([0, -1, 0], np.int16)},
    "once in a call": {"table": np.array([0, 0, 0], np.int16)},
    "keys": {"keys": int64s(-1, 7, 1)},
    "counts": {"counts": int64s(1, 2, 0)},
    "one length": {"counts": int64s(1, 2)},
    "unique_total": {"unique_total": 2},
    "access_total": {"access_total": 5},
    "access_total ": {"unique_total": 10},
}


@pytest.mark.parametrize("wrong", WRONG_TRACES)
def test_a_wrong_trace_is_refused(wrong):
    with pytest.raises(InvalidArgumentError, match=wrong.strip()):
        trace_of(**WRONG_TRACES[wrong])


def test_wrong_samples_are_refused():
    def lengths(*rows):
        return np.array(rows, np.int64)

    for reason, tables, of_lists, ids in (
        ("2 columns", ("v", "w"), lengths([0, 0, 0]), ()),
        ("a column", (), np.zeros((2**50, 0), np.int64), ()),
        ("lengths of at least 0", ("v",), lengths([-1], [1]), ()),
        ("lengths of dtype int64 and 2", ("v",), int64s(1), (1,)),
        ("3 ids, found 2", ("v",), lengths([1], [2]), (1, 2)),
        ("18446744073709551616 ids, found 0", ("v",), lengths([2**63 - 1], [2**63 - 1], [2]), ()),
        ("ids that are not -1", ("v",), lengths([1]), (-1,)),
    ):
        with pytest.raises(InvalidArgumentError, match=f"samples: {reason}"):
            Samples(tables, of_lists, int64s(*ids))


def test_a_wrong_profile_is_refused():
    with pytest.raises(InvalidArgumentError, match="under its name"):
        Profile({"w": table_of({})})
    for rate in (0, float("inf"), float("nan"), True, "1"):
        with pytest.raises(InvalidArgumentError, match="rate"):
            Profile({}, rate=rate)


# Spatial sampling.


def test_hashes_of_a_table_are_one_to_one_and_never_zero():
    keys = np.concatenate(
        [np.arange(100_000), np.arange(-100_000, -1), int64s(2**63 - 1, -(2**63))]
    )
    hashes = spatial_hash("v", keys)
    assert len(np.unique(hashes)) == len(keys)
    assert hashes.min() > 0
    assert spatial_hash("v", int64s(-1)) == 0  # of what is no key


def test_hashes_stay_what_they_are():
    """Files name their sample by its rate alone: another hash would make them wrong."""
    assert spatial_hash("criteo/c01", int64s(0, 1, 2**40 - 1, -2)).tolist() == VECTOR


VECTOR = [978500930892098977, 7109335382714121259, 6195511834542831205, 2043947905448776068]


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.01])
def test_a_sample_has_its_share_of_the_keys(rate):
    keys = np.arange(200_000)
    for name in ("v", "w"):
        share = np.mean(spatial_hash(name, keys) <= np.uint64(spatial_limit(rate)))
        assert share == pytest.approx(rate, abs=4 * (rate / len(keys)) ** 0.5)


def test_limits_of_rates():
    assert spatial_limit(1.0) == 2**64 - 1
    assert spatial_limit(0.5) == 2**63 - 1
    assert spatial_limit(2.0**-64) == 0


# Files.


counted = st.dictionaries(
    st.integers(0, INT64_MAX), st.integers(1, 2**50) | st.integers(1, 9), max_size=9
)


@settings(max_examples=60)
@given(
    counts=st.lists(counted, max_size=4),
    rate=st.floats(0, 1, exclude_min=True),
    seed=st.integers(-INT64_MAX, INT64_MAX),
    store_id=st.text(max_size=5),
)
def test_any_profile_read_back_is_the_one_written(counts, rate, seed, store_id):
    tables = {f"t{i}": table_of(of_table, f"t{i}") for i, of_table in enumerate(counts)}
    profile = Profile(tables, rate, seed, store_id=store_id)
    read = Profile.from_bytes(profile.to_bytes())
    assert (list(read.tables), read.rate, read.seed, read.store_id) == (
        list(tables),
        rate,
        seed,
        store_id,
    )
    for name, table in tables.items():
        assert read.tables[name].keys.tolist() == table.keys.tolist()
        assert read.tables[name].counts.tolist() == table.counts.tolist()
    assert same(read, profile)


def test_a_failed_save_leaves_the_old_file(tmp_path):
    with pytest.raises(StorageError, match=r"a\.profile"):
        whole_profile().save(tmp_path / "missing" / "a.profile")
    (tmp_path / "a.profile").mkdir()
    with pytest.raises(StorageError, match=r"a\.profile"):
        whole_profile().save(tmp_path / "a.profile")
    assert [path.name for path in tmp_path.iterdir()] == ["a.profile"]


def refused(content, reason="", what="some.file"):
    pattern = f"{what}: expected an embstore profile, found .*{reason}"
    with pytest.raises(InvalidArgumentError, match=f"(?s){pattern}"):
        Profile.from_bytes(content, what=what)


def with_header(**changes):
    members = members_of(whole_profile().to_bytes())
    header = json.loads(members["header"].tobytes())
    for name, value in changes.items():
        if value is None:
            del header[name]
        else:
            header[name] = value
    members["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    return archive_of(members)


def test_a_pickle_inside_is_never_opened():
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("a pickle was opened",)

    members = members_of(whole_profile().to_bytes())
    trap = np.array([Trap()], object)
    for name in ("header", "keys_0", "more"):
        reason = "no more in it" if name == "more" else "unsigned integers"
        refused(archive_of({**members, name: trap}), reason)
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as file:
        file.writestr("header.npy", b"\x80\x04cos\nsystem\n(S'false'\ntR.")
    refused(raw.getvalue())


def test_another_kind_or_version_is_refused():
    refused(with_header(version=1), "format version 2, found an embstore profile of version 1")
    refused(with_header(format="an embstore hot set"), "hot set of version 2")
    refused(with_header(version=None), "version none")


FACTS = {"name": "v", "rows": 0, "accesses": 2**41}
WRONG_HEADERS = {
    "rate above 0": {"rate": float("nan")},
    "rate": {"rate": "1"},
    "seed": {"seed": 2**70},
    "KeyError": {"seed": None},
    "no more in it": {"more": 1},
    "store_id": {"store_id": 5},
    "each table once": {"tables": [FACTS, FACTS]},
    "an array, found no counts_2": {
        "tables": [FACTS, {**FACTS, "name": "w"}, {**FACTS, "name": "x"}]
    },
    "no more in it, found .'counts_1": {"tables": [FACTS]},
    "an array, found no counts_1": {"tables": [FACTS] * 10_000},
    "TypeError": {"tables": [{"name": "v"}, {"name": "w"}]},
    "TypeError ": {"tables": 5},
    "TypeError  ": {"samples": {"tables": ["v"], "more": 1}},
    "1 columns": {"samples": {"tables": ["v"]}},
    "KeyError  ": {"trace": {}},
}


@pytest.mark.parametrize("reason", WRONG_HEADERS)
def test_a_wrong_header_is_refused(reason):
    refused(with_header(**WRONG_HEADERS[reason]), f"({reason.strip()})")


def test_a_header_that_is_no_object_is_refused():
    members = members_of(whole_profile().to_bytes())
    for text in (b"[]", b"", b"{", b"\xff", b"[" * 100_000):
        refused(archive_of({**members, "header": np.frombuffer(text, np.uint8)}))


WRONG_ARRAYS = {
    "keys ascending": ("keys_0", np.array([1, 0, 1], np.uint8)),
    "keys ascending ": ("keys_0", np.array([1, 2**63 - 1, 5], np.uint64)),
    "is no key": ("keys_0", np.array([2**64 - 5, 4, 5], np.uint64)),
    "counts of at least 1": ("counts_0", np.array([1, 0, 1], np.uint8)),
    "one length": ("counts_0", np.array([1, 1], np.uint8)),
    "1 dimension": ("counts_0", np.ones((3, 1), np.uint8)),
    "unsigned integers": ("counts_0", np.ones(3)),
    "unsigned integers ": ("counts_0", np.ones(3, np.int64)),
    "trace: call below": ("trace_call", np.array([0, 0, 2**31], np.uint32)),
    "no more in it": ("more", np.ones(3, np.uint8)),
}


@pytest.mark.parametrize("reason", WRONG_ARRAYS)
def test_a_wrong_array_is_refused(reason):
    name, values = WRONG_ARRAYS[reason]
    members = members_of(whole_profile().to_bytes())
    refused(archive_of({**members, name: values}), reason.strip())


def test_a_missing_array_is_refused():
    members = members_of(whole_profile().to_bytes())
    for name in members:
        rest = {n: values for n, values in members.items() if n != name}
        refused(archive_of(rest), f"{name}")


def test_a_file_takes_no_more_than_its_numbers_need():
    keys = np.cumsum(np.random.default_rng(SEED).integers(1, 200, 50_000))
    table = TableProfile("v", 0, keys, np.full(50_000, 255), 255 * 50_000)
    assert len(Profile({"v": table}).to_bytes()) < 2 * 50_000 + 2_000


# Sampling by samples.


SPARSE = [-(2**63), -(2**63) + 1, -2, 0, 1, 2**40, 2**63 - 1]
"""Keys of 64 bits as int64, ascending."""


def test_sparse_keys_come_back_from_a_file():
    keys, counts = int64s(*SPARSE), np.arange(1, len(SPARSE) + 1)
    table = TableProfile("v", 0, keys, counts, int(counts.sum()))
    samples = Samples(("v",), np.ones((len(keys), 1), np.int64), keys[::-1].copy())
    trace = Trace(
        rate=1.0,
        tables=("v",),
        calls=1,
        call=np.zeros(len(keys), np.int32),
        table=np.zeros(len(keys), np.int16),
        keys=keys,
        counts=counts,
        unique_total=len(keys),
        access_total=int(counts.sum()),
    )
    made = Profile({"v": table}, samples=samples, trace=trace)
    assert Profile.from_bytes(made.to_bytes()) == made
    assert table.key_bound == 2**64 - 1


def test_a_gap_of_sparse_keys_that_wraps_round_is_refused():
    members = members_of(whole_profile().to_bytes())
    refused(archive_of({**members, "keys_0": np.array([5, 2**64 - 4, 1], np.uint64)}), "ascending")
