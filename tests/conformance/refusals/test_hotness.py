"""Profiles and hot sets that a store cannot take."""

import numpy as np
import pytest

from embstore.errors import CapacityError, InvalidArgumentError, TableNotFoundError
from embstore.profiles.hotset import HotSet
from tests.conformance.cases import config, refused
from tests.conformance.hotness.profiles import profile


@pytest.fixture
def twin(open_twin):
    twin = open_twin(cache_bytes=64 << 10, policy="rank", a=config(rows=100))
    return twin


@pytest.mark.needs("plain_keys")
def test_wrong_profiles(twin):
    store = twin.store
    with refused(store, TableNotFoundError, "other", "rename"):
        store.import_profile(profile(a=[1], other=[1, 2]))
    with refused(store, InvalidArgumentError, "'a'", "100 rows", "101"):
        store.import_profile(profile(a=np.ones(101)))
    with refused(store, InvalidArgumentError, "'nobody'"):
        store.import_profile(profile(a=[1]), rename={"nobody": "a"})
    with refused(store, InvalidArgumentError, "one profile"):
        store.import_profile(profile(a=[1], b=[1]), rename={"b": "a"})
    with refused(store, InvalidArgumentError, '"counted"'):
        store.export_profile(source="guessed")
    store.import_profile(profile(b=np.ones(100)), rename={"b": "a"})


@pytest.mark.needs("plain_keys")
def test_wrong_hot_sets(twin):
    store = twin.store
    with refused(store, TableNotFoundError, "'b'"):
        store.pin_hot_set(HotSet({"b": np.arange(3)}))
    with refused(store, InvalidArgumentError, "'a'", "100"):
        store.pin_hot_set(HotSet({"a": np.arange(101)}))
    store.pin_hot_set(HotSet({"a": np.arange(3)}, version=7))
    with refused(store, InvalidArgumentError, "above 7"):
        store.pin_hot_set(HotSet({"a": np.arange(4)}, version=7))
    twin.create_table("large", **config(rows=1 << 20))
    with refused(store, CapacityError, "three quarters", "cache_bytes"):
        store.pin_hot_set(HotSet({"large": np.arange(1 << 18)}, version=8))
