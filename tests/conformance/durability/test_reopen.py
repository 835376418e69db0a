"""close and open again; calls on a store that is closed."""

import pytest

from tests.conformance.backends import TINY
from tests.conformance.cases import (
    KINDS,
    OPTIMIZERS,
    assert_same,
    batch,
    config,
    generator,
    normal,
    ones,
    total,
)


@pytest.mark.needs("plain_keys")
def test_configuration_comes_back(open_twin):
    twin = open_twin()
    made = {}
    for i, optimizer in enumerate(OPTIMIZERS.values()):
        made[f"t{i}"] = config(dim=3 + i, rows=10 + i, optimizer=optimizer, seed=2**64 - 1 - i)
        twin.create_table(f"t{i}", **made[f"t{i}"])
    twin.reopen()
    for name, wanted in made.items():
        table = twin.store.table(name)
        assert {key: getattr(table, key) for key in wanted} == wanted
        twin.create_table(name, **wanted)


def test_opened_with_another_device(open_twin):
    """Cache, policy, threads and device are no part of the content."""
    twin, rng = open_twin(cache_bytes=64 << 10), generator(132)
    twin.create_table("a", **config(dim=16, optimizer=OPTIMIZERS["adam"]))
    twin.on("a", "update", *batch(rng, 200, dim=16))
    twin.reopen(device="cpu", cache_bytes=32 << 10)
    twin.on("a", "update", *batch(rng, 200, dim=16))


def test_a_store_without_changes_is_left_as_it_was(backend):
    store = backend.open_store()
    store.create_table("a", **config())
    store.close()
    before = (backend.path() / "CATALOGUE").read_bytes()
    store = backend.open_store()
    store.table("a").lookup([1])
    store.close()
    assert (backend.path() / "CATALOGUE").read_bytes() == before


def test_the_with_statement_closes_also_after_an_error(backend):
    with pytest.raises(RuntimeError), backend.open_store() as store:
        store.create_table("a", **config()).update([1], ones(1))
        raise RuntimeError
    with backend.open_store() as store:
        assert store.table("a").t == 1


def test_closing_twice_is_harmless(backend):
    store = backend.open_store()
    store.close()
    store.close()


def test_rows_looked_up_outlive_the_store(backend):
    store = backend.open_store()
    table = store.create_table("a", **config())
    table.assign([1], ones(1))
    rows, (weights, _) = table.lookup([1]), table.read_rows([1])
    store.close()
    assert_same(rows, ones(1))
    assert_same(weights, ones(1))


@KINDS
@pytest.mark.parametrize("limits", [None, TINY], ids=["plain", "merging"])
def test_optimizer_state_survives_the_whole_way_round(open_twin, optimizer, limits):
    """Source: "optimizer state survives evict, reload, checkpoint, load": FBGEMM#5965, Colossal's
    AUC loss, the row-wise state dim fix (recsys-examples PR 305). CachedEmbedding, "state tied to
    slot": rows come back into other slots than they left."""
    twin, rng = open_twin(cache_bytes=40 << 10, limits=limits), generator(217)
    table = twin.create_table("a", **config(dim=10, rows=2000, optimizer=optimizer))
    trained = rng.permutation(2000)[:300]
    twin.on("a", "update", trained, normal(rng, 300, 10))
    for _ in range(5):
        table.lookup(rng.permutation(2000))  # evict
        keys = rng.permutation(trained)[:100]
        twin.on("a", "update", keys, normal(rng, 100, 10))  # reload
    assert total(twin.store, "evictions_dirty") + total(twin.store, "evictions_host") > 300
    twin.checkpoint("c")
    twin.on("a", "update", trained, normal(rng, 300, 10))
    twin.restore("c")
    twin.reopen()
    for found, wanted in zip(
        twin.store.table("a").read_rows(trained),
        twin.reference.table("a").read_rows(trained),
        strict=True,
    ):
        assert_same(found, wanted)
    twin.on("a", "update", trained, normal(rng, 300, 10))
