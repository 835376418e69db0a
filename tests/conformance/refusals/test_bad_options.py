"""Options of calls and of open: rates, scales, on_nonfinite, cache_bytes, policy, limits."""

import numpy as np
import pytest

import embstore
from embstore.config import Ftrl, Limits
from embstore.errors import CapacityError, EmbstoreError, InvalidArgumentError
from tests.conformance.cases import config, each, ones, raising, refused, unchanged

NUMBERS = {
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": float("-inf"),
    "negative": -1e-30,
    "beyond fp32": 3.5e38,
    "NumPy's beyond fp32": np.float64(1e300),
    "an int beyond float": 10**400,
    "one below": -(10**400),
    "none": None,
    "word": "fast",
    "text": "0.1",
    "a list": [0.1],
    "an array": np.array([0.1]),
    "complex": 1j,
}


@pytest.fixture
def twin(open_twin):
    twin = open_twin(a=config())
    twin.on("a", "update", [1, 2], ones(2))
    return twin


def updates(twin, **options):
    """Yield every update verb with these options."""
    store, a, one = twin.store, twin.store.table("a"), ([1], ones(1))
    yield lambda: a.update(*one, **options)
    yield lambda: a.update([], np.empty((0, 4), np.float32), **options)
    yield lambda: a.update_pooled([1], [0, 1], ones(1), **options)
    yield lambda: a.update_ranks([one], **options)
    yield lambda: store.update({"a": one}, **options)
    yield lambda: store.update_ranks([{"a": one}], **options)


OPTIONS = {
    "learning_rate": ("expected learning_rate", [v for v in NUMBERS.values() if v is not None]),
    "gradient_scale": ("expected gradient_scale", NUMBERS.values()),
    "on_nonfinite": ('"refuse" or "skip"', ["", "raise", "SKIP", None, True, 1, b"skip", ["skip"]]),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_option_of_updates(twin, option):
    part, values = OPTIONS[option]
    with unchanged(twin.store):
        for value in each(values):
            for call in updates(twin, **{option: value}):
                with raising(InvalidArgumentError, part, repr(value)):
                    call()


def test_learning_rate_that_ftrl_divides_by(open_twin):
    """Also of an update that would be skipped, and of one that names other tables too."""
    twin = open_twin(a=config(optimizer=Ftrl(0.1)), b=config())
    twin.on("a", "update", [1, 2], ones(2))
    skipped = {"b": ([1], ones(1)), "a": ([1], ones(1, 4, np.inf))}
    with unchanged(twin.store):
        for value in each([0, -0.0, 1e-46]):
            parts = "table 'a'", "learning_rate", "> 0 in fp32", repr(float(value))
            for options in ({}, {"on_nonfinite": "skip"}):
                for call in updates(twin, learning_rate=value, **options):
                    with raising(InvalidArgumentError, *parts):
                        call()
            with raising(InvalidArgumentError, *parts):
                twin.store.update(skipped, learning_rate=value, on_nonfinite="skip")
            with raising(InvalidArgumentError, *parts[:3]):
                twin.store.table("a").learning_rate = value


OPEN = {
    "device": ["gpu", "CPU", "", None, 0],
    "cache_bytes": [0, -1, 1.5, 1e9, True, None, "1GB"],
    "policy": ["", "LRU", "fifo", None, 0, ["lru"]],
    "checkpoints_keep": [0, -1, 1.5, True, None, "3"],
    "threads": [0, -1, 1.5, True, "2"],
}


def test_option_of_open_makes_no_store(tmp_path):
    for option, value in each((name, value) for name in OPEN for value in OPEN[name]):
        with pytest.raises(InvalidArgumentError, match=f"expected {option}.*found") as caught:
            embstore.open(tmp_path / "store", **{option: value})
        assert repr(value) in str(caught.value)
        assert not (tmp_path / "store").exists()


def test_limits_of_another_type(tmp_path):
    with pytest.raises(InvalidArgumentError, match="limits"):
        embstore.open(tmp_path / "store", limits={"tables_max": 3})
    assert not (tmp_path / "store").exists()


def test_limit_that_is_no_positive_integer():
    for value in each([0, -1, 1.5, True, None, "1", 2**62 + 1]):
        for name in each(list(Limits.__dataclass_fields__)):
            with pytest.raises(InvalidArgumentError, match=rf"limits\.{name}.*found"):
                Limits(**{name: value})


def test_segments_are_whole_pages():
    for name in each(["segment_bytes", "base_segment_bytes"]):
        with pytest.raises(InvalidArgumentError, match="multiples of 4096"):
            Limits(**{name: 5000})


def test_path_that_no_file_can_have():
    with pytest.raises(EmbstoreError):
        embstore.open("a\0b")


def test_update_beyond_the_last_t(open_twin):
    twin = open_twin(a=config())
    nothing = (np.empty((0, 4), np.float32), np.empty((0, 0), np.float32))
    twin.on("a", "put_rows", [], *nothing, 2**64 - 1)
    with refused(twin.store, InvalidArgumentError, "table 'a'"):
        twin.store.table("a").update([0], ones(1))


def test_cache_larger_than_all_memory(backend):
    with pytest.raises(CapacityError, match="cache_bytes"):
        backend.open_store(cache_bytes=1 << 60)
    store = backend.open_store()
    with refused(store, CapacityError, "cache_bytes"):
        store.resize_cache(1 << 60)


def test_more_threads_than_anybody_has(tmp_path):
    with pytest.raises(InvalidArgumentError, match="threads"):
        embstore.open(tmp_path, threads=100_000)
