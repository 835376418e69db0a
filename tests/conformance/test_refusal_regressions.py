"""Bad input that raised another error than the contract's, or was taken."""

import numpy as np
import pytest

from embstore.config import Constant, Limits, Sgd
from embstore.errors import CapacityError, InvalidArgumentError

CONFIG = {"dim": 4, "rows": 1000, "optimizer": Sgd(0.1), "initializer": Constant(0.0)}
ONE = np.ones((1, 4), np.float32)


@pytest.mark.parametrize("rate", [10**400, -(10**400)])
def test_rate_too_large_for_a_float_is_refused(open_twin, rate):
    twin = open_twin()
    table = twin.create_table("a", **CONFIG)
    with pytest.raises(InvalidArgumentError, match="learning_rate"):
        table.update([0], ONE, learning_rate=rate)
    with pytest.raises(InvalidArgumentError, match="gradient_scale"):
        table.update([0], ONE, gradient_scale=rate)


def test_ragged_keys_are_refused(open_twin):
    table = open_twin().create_table("a", **CONFIG)
    with pytest.raises(InvalidArgumentError, match="table 'a': expected keys"):
        table.lookup([[1], [2, 3]])


def test_ragged_rows_are_refused(open_twin):
    table = open_twin().create_table("a", **CONFIG)
    with pytest.raises(InvalidArgumentError, match="table 'a': expected rows"):
        table.assign([1, 2], [[1.0], [2.0, 3.0]])


def test_lookup_of_no_mapping_is_refused(open_twin):
    with pytest.raises(InvalidArgumentError):
        open_twin().store.lookup([1, 2])


def test_metadata_nested_too_deeply_is_refused(open_twin):
    metadata = {"deep": 1}
    for _ in range(100_000):
        metadata = {"deep": metadata}
    with pytest.raises(InvalidArgumentError, match="metadata"):
        open_twin().store.checkpoint("c", metadata)


def test_changing_a_returned_checkpoint_changes_nothing(open_twin):
    twin = open_twin()
    twin.checkpoint("c", {"step": 1}).metadata["step"] = object
    assert twin.store.checkpoints()[0].metadata == {"step": 1}
    twin.checkpoint("d")


def test_update_beyond_the_last_t_is_refused(open_twin):
    twin = open_twin()
    twin.create_table("a", **CONFIG)
    nothing = (np.empty((0, 4), np.float32), np.empty((0, 0), np.float32))
    twin.on("a", "put_rows", [], *nothing, 2**64 - 1)
    with pytest.raises(InvalidArgumentError, match="table 'a'"):
        twin.store.table("a").update([0], ONE)


@pytest.mark.needs("limits")
def test_call_of_several_tables_is_held_to_the_byte_limit_as_one(open_twin):
    twin = open_twin(limits=Limits(call_bytes_max=1 << 16))
    for name in ("a", "b"):
        twin.create_table(name, **CONFIG)
    with pytest.raises(InvalidArgumentError, match="call_bytes_max"):
        twin.store.lookup({"a": np.zeros(2000, np.int64), "b": np.zeros(2000, np.int64)})


@pytest.mark.needs("limits")
def test_pooled_result_is_held_to_the_byte_limit(open_twin):
    table = open_twin(limits=Limits(call_bytes_max=1 << 16)).create_table("a", **CONFIG)
    with pytest.raises(InvalidArgumentError, match="call_bytes_max"):
        table.lookup_pooled([], np.zeros(100_000, np.int64))


def test_cache_larger_than_the_address_space_is_refused(backend):
    if "memory" not in backend.offers:  # a GPU knows at once what it has
        with pytest.raises(CapacityError, match="cache_bytes"):
            backend.open_store(cache_bytes=1 << 60)
        return
    store = backend.open_store(cache_bytes=1 << 60)
    with pytest.raises(CapacityError, match="cache_bytes"):
        store.create_table("a", **CONFIG)


@pytest.mark.needs("limits")
def test_base_segment_too_small_for_one_row_is_refused(open_twin):
    twin = open_twin(limits=Limits(base_segment_bytes=4096))
    with pytest.raises((InvalidArgumentError, CapacityError), match="base_segment_bytes"):
        twin.store.create_table("a", **CONFIG)
