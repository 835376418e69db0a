"""restore: back to each kept label, with what was created, dropped and tuned in between."""

import pytest

from embstore.errors import CapacityError, CheckpointNotFoundError
from tests.conformance.backends import TINY
from tests.conformance.cases import OPTIMIZERS, batch, config, generator, grow, ones, refused


def grown_history(twin, rng):
    """Make c1 with a; c2 with a, b and c; c3 with b trained on, c dropped and made anew."""
    twin.create_table("a", **config(dim=16, optimizer=OPTIMIZERS["adam"]))
    twin.on("a", "update", *batch(rng, 200, dim=16))
    twin.checkpoint("c1")
    twin.create_table("b", **config(optimizer=OPTIMIZERS["adagrad"]))
    twin.create_table("c", **config(dim=7))
    twin.update({"b": batch(rng, 100), "a": batch(rng, 100, dim=16)})
    twin.on("c", "update", *batch(rng, 50, dim=7))
    twin.checkpoint("c2")
    twin.drop_table("c")
    twin.create_table("c", **config(dim=8))
    twin.on("c", "update", *batch(rng, 50, dim=8))
    twin.on("b", "update", *batch(rng, 100))
    grow(twin, "a", 5000)
    twin.checkpoint("c3")
    twin.drop_table("a")
    twin.on("b", "update", *batch(rng, 100))


@pytest.mark.parametrize("limits", [None, TINY], ids=["plain", "merging"])
@pytest.mark.parametrize("between", ["nothing", "reopen", "crash", "settle"])
def test_each_kept_label_in_turn(open_twin, limits, between):
    twin, rng = open_twin(limits=limits, cache_bytes=128 << 10), generator(122)
    grown_history(twin, rng)
    for label in ("c3", "c2", "c2", "c1", "c1"):
        if between != "nothing":
            getattr(twin, between)()
        twin.restore(label)
        twin.check()
        twin.on("a", "update", *batch(rng, 50, dim=16))
        if "b" in twin.store.tables():
            twin.on("b", "update", *batch(rng, 50))


def test_what_is_newer_is_gone(open_twin):
    twin = open_twin()
    grown_history(twin, generator(123))
    twin.restore("c2")
    assert [c.label for c in twin.store.checkpoints()] == ["c1", "c2"]
    with refused(twin.store, CheckpointNotFoundError, "no checkpoint 'c3'", "'c1', 'c2'"):
        twin.store.restore("c3")


def test_is_a_command_whose_number_is_the_next(open_twin):
    """Rule 5: numbers never come twice, though what they did is undone."""
    twin = open_twin(a=config())
    twin.checkpoint("c")
    twin.on("a", "update", [1], ones(1))
    twin.restore("c")
    assert twin.store.command == 3
    twin.crash()
    assert twin.store.command == 3
    assert twin.on("a", "update", [1], ones(1)).command == 4


def test_to_a_store_without_tables(open_twin):
    twin = open_twin()
    twin.checkpoint("empty")
    twin.create_table("a", **config())
    twin.on("a", "update", [1, 2], ones(2))
    twin.store.flush()
    twin.restore("empty")
    assert twin.store.tables() == []
    twin.create_table("a", **config(dim=8))
    twin.on("a", "update", [1], ones(1, 8))
    twin.reopen()


def test_where_the_cache_has_room_for_one_layout_at_a_time(open_twin):
    """The layout of now must leave the cache before the one of the checkpoint comes back."""
    twin = open_twin(cache_bytes=15_000, a=config(dim=512))
    twin.on("a", "update", [1], ones(1, 512))
    twin.checkpoint("c")
    twin.drop_table("a")
    twin.create_table("b", **config(dim=516))
    twin.restore("c")


def test_to_layouts_that_the_cache_has_no_room_for_is_refused(open_twin):
    """Refused before anything changes: the checkpoint waits for an opening with a larger cache."""
    twin = open_twin(cache_bytes=1 << 20)
    for name, dim in (("a", 512), ("b", 516)):
        twin.create_table(name, **config(dim=dim))
        twin.on(name, "update", [1], ones(1, dim))
    twin.checkpoint("both")
    twin.drop_table("b")
    twin.reopen(cache_bytes=15_000)
    with refused(twin.store, CapacityError, "table 'b'", "cache_bytes"):
        twin.store.restore("both")
    twin.on("a", "update", [2], ones(1, 512))
    twin.reopen(cache_bytes=1 << 20)
    twin.restore("both")
