"""Values that a verb cannot take: of labels, metadata, rows, budgets, shares."""

import functools

import numpy as np
import pytest

from embstore.errors import CapacityError, CheckpointNotFoundError, InvalidArgumentError
from tests.conformance.cases import config, each, raising, refused, unchanged
from tests.conformance.hotness.profiles import profile
from tests.conformance.refusals.test_bad_options import NUMBERS


def nested(depth):
    return functools.reduce(lambda inner, _: {"deeper": inner}, range(depth), {})


METADATA = {
    "a list": [1],
    "text": "x",
    "bytes in it": {"a": b"x"},
    "nan": {"a": float("nan")},
    "infinity": {"a": [float("inf")]},
    "an object": {"a": object()},
    "keys that are no text": {1: 2},
    "itself": {},
    "half a surrogate pair": {"a": "\ud800"},
    "a number too long to print": {"a": 10**5000},
    "nested more deeply than another process could read": nested(40),
    "nested more deeply than Python's stack": nested(100_000),
}
METADATA["itself"]["a"] = METADATA["itself"]

INVALID, CAPACITY = InvalidArgumentError, CapacityError
VERBS = {
    "grow": lambda s, rows: s.table("a").grow(rows),
    "label": lambda s, label: s.checkpoint(label),
    "metadata": lambda s, metadata: s.checkpoint("c", metadata),
    "restore": lambda s, label: s.restore(label),
    "budget": lambda s, cache_bytes: s.resize_cache(cache_bytes),
    "learning_rate": lambda s, rate: setattr(s.table("a"), "learning_rate", rate),
    "rename": lambda s, rename: s.import_profile(profile(a=[1]), rename=rename),
    "share": lambda s, share: s.warm_cache(share),
    "hot keys": lambda s, keys: s.pin_hot_set(keys),
    "hot set": lambda s, hot_set: s.pin_hot_set(hot_set),
}
LABELS = ["", "x" * 256, "a\n", "a\0", "\ud800", None, 7, b"a", ["a"]]
BAD = {
    "grow": (INVALID, "table 'a'", [9, 0, -1, 2**40 + 1, 11.0, True, None, "20"]),
    "label": (INVALID, "expected a label", LABELS),
    "metadata": (INVALID, "expected metadata", METADATA.values()),
    "restore": (CheckpointNotFoundError, "no checkpoint", ["x", "", None, 7, ["c"], b"c", "c1 "]),
    "budget": (INVALID, "cache_bytes", [0, -1, 1.5, 1e6, "1000000", None, True, [1 << 20]]),
    "learning_rate": (INVALID, "table 'a'", NUMBERS.values()),
    "rename": (INVALID, "rename", [["a"], 5, "a", {"a": 5}, {"a": ["b"]}, {5: "a", "a": "a"}]),
    "share": (INVALID, "share", [0, -0.5, 1.5, float("nan"), True, "0.7"]),
    "hot keys": (INVALID, "table 'a'", [{"a": "b"}, {"a": np.zeros(2)}, {"a": [[1, 2]]}]),
    "hot set": (INVALID, "HotSet", ["a", b"", 3, [np.arange(3)]]),
}
SHOWN = "grow", "label", "restore", "budget", "learning_rate"
"""Of which the message says what was found."""


@pytest.mark.needs("plain_keys")
def test_a_value_of_another_kind_or_range_changes_nothing(open_twin):
    twin = open_twin(a=config(rows=10))
    twin.checkpoint("c1")
    for verb, (error, part, values) in each(BAD.items()):
        with unchanged(twin.store):
            for value in values:
                with raising(error, part, repr(value) if verb in SHOWN else ""):
                    VERBS[verb](twin.store, value)


def test_a_budget_beyond_what_a_machine_can_address(open_twin):
    twin = open_twin(a=config())
    before = twin.store.stats()["cache"]
    for cache_bytes in each([1 << 52, 1 << 62, 10**40]):
        with refused(twin.store, CapacityError, "cache_bytes"):
            twin.store.resize_cache(cache_bytes)
        assert twin.store.stats()["cache"] == before


def test_an_unknown_label_is_named_with_those_kept(open_twin):
    twin = open_twin()
    with refused(twin.store, CheckpointNotFoundError, "'x'", "none"):
        twin.store.restore("x")
    twin.checkpoint("c1")
    with refused(twin.store, CheckpointNotFoundError, "'x'", "kept are: 'c1'"):
        twin.store.restore("x")


# Counts of a lookup


COUNTS = {
    "too short": [1],
    "too long": [1, 1, 1],
    "of two dimensions": [[1, 1]],
    "a number": 2,
    "zero": [1, 0],
    "negative": [-1, 1],
    "too large": [1, 2**32],
    "larger than int64": [1, 2**70],
    "floats": [1.0, 2.0],
    "flags": [True, True],
    "text": ["1", "2"],
    "ragged": [[1], [1, 2]],
    "objects": [None, 1],
}


def pools(twin):
    return twin.store.stats()["cache"]["pools"]


@pytest.mark.needs("plain_keys")
def test_bad_counts_change_nothing(open_twin):
    twin = open_twin(a=config(), b=config(dim=8))
    table, before = twin.store.table("a"), pools(twin)
    with unchanged(twin.store):
        for counts in each(COUNTS.values()):
            with raising(InvalidArgumentError, "table 'a'", "counts", "(2,)"):
                table.lookup([1, 2], counts=counts)
            with raising(InvalidArgumentError, "table 'a'", "counts", "(2,)"):
                twin.store.lookup({"b": [1], "a": [1, 2]}, counts={"b": [3], "a": counts})
            with raising(InvalidArgumentError, "counts"):
                table.lookup([1, 2], admit=False, counts=counts)
            with raising(InvalidArgumentError, "1000"):
                table.lookup([1, 1000], counts=[1, 1])
            assert pools(twin) == before


def test_counts_of_several_tables_are_a_mapping_of_these(open_twin):
    twin = open_twin(a=config(), b=config())
    before = pools(twin)
    for counts in each([[1], 1, {"b": [1]}, {"a": [1], "none": [1]}]):
        with refused(twin.store, InvalidArgumentError, "counts"):
            twin.store.lookup({"a": [1]}, counts=counts)
        assert pools(twin) == before
