"""update, of one table and of several: its options, duplicates, and what it acknowledges."""

import numpy as np
import pytest

from tests.conformance.cases import OPTIMIZERS, batch, config, generator, normal, ones


@pytest.fixture(params=OPTIMIZERS.values(), ids=OPTIMIZERS)
def twin(request, open_twin):
    """A table of each optimizer."""
    twin = open_twin()
    twin.create_table("a", **config(dim=7, optimizer=request.param))
    return twin


def test_updates_one_after_the_other(twin):
    rng = generator(31)
    for t in range(1, 9):
        assert twin.on("a", "update", *batch(rng, 100, dim=7)).t == t


def test_a_key_more_often_than_a_chunk(twin):
    rng = generator(32)
    keys = rng.permutation(np.repeat([3, 4, 5], [64, 65, 257]))
    twin.on("a", "update", keys, normal(rng, len(keys), 7))


@pytest.mark.parametrize("rate", [0, 1e-50, 1e-40, 0.3, 1, np.float32(0.1), np.float64(3e38)])
def test_learning_rate_of_one_call(twin, rate):
    rng = generator(33)
    twin.on("a", "update", *batch(rng, 20, dim=7), learning_rate=rate)
    twin.on("a", "update", *batch(rng, 20, dim=7))


@pytest.mark.parametrize("scale", [0, -0.0, 1, 1 / 3, 1e-50, 1e-42, 1e6, np.float32(0.25)])
def test_gradient_scale(twin, scale):
    twin.on("a", "update", *batch(generator(34), 50, dim=7), gradient_scale=scale)


def test_float16_gradients_are_widened(twin):
    keys, grads = batch(generator(35), 50, dim=7)
    twin.on("a", "update", keys, grads.astype(np.float16))


def test_skipped_update_is_acknowledged_and_changes_nothing(twin):
    keys, grads = batch(generator(36), 50, dim=7)
    twin.on("a", "update", keys, grads)
    before = twin.store.table("a").digest()
    done = twin.on("a", "update", [1, 2], ones(2, 7, np.inf), on_nonfinite="skip")
    assert (done.skipped, done.t, done.command) == (True, 1, 3)
    assert twin.store.table("a").digest() == before
    done = twin.on("a", "update", keys, grads, on_nonfinite="skip")
    assert (done.skipped, done.t) == (False, 2)


def test_skipped_rows_do_not_count_as_written(twin):
    twin.on("a", "update", [1], ones(1, 7, np.nan), on_nonfinite="skip")
    assert twin.reference.table("a").written == set()


@pytest.fixture
def several(open_twin):
    """Two tables of one layout and two of others."""
    twin = open_twin()
    for name, kind in (("a", "sgd"), ("b", "sgd"), ("c", "adam"), ("d", "adagrad")):
        dim = 7 if name == "c" else 4
        twin.create_table(name, **config(dim=dim, optimizer=OPTIMIZERS[kind]))
    return twin


def share(rng, names="abcd"):
    return {n: batch(rng, 60, dim=7 if n == "c" else 4) for n in names}


def test_several_tables_are_one_command(several):
    rng = generator(37)
    several.update(share(rng))
    done = several.update(share(rng, "ca"), learning_rate=0.25, gradient_scale=0.5)
    assert (done.command, done.t, done.skipped) == (6, {"c": 2, "a": 2}, False)


def test_a_table_with_its_own_rate_beside_one_with_another(several):
    several.store.table("a").learning_rate = 0.5
    several.reference.table("a").learning_rate = 0.5
    several.update(share(generator(38)))


def test_tables_without_keys_count_and_those_not_named_do_not(several):
    empty = ([], np.empty((0, 4), np.float32))
    assert several.update({"a": empty, "b": ([1], ones(1))}).t == {"a": 1, "b": 1}
    assert several.store.table("d").t == 0


def test_no_table_is_a_command(several):
    assert several.update({}).t == {}


def test_one_bad_table_skips_all_of_them(several):
    before = {n: several.store.table(n).digest() for n in "abcd"}
    grads = {"a": ([1], ones(1)), "b": ([2], ones(1, 4, np.inf)), "c": ([3], ones(1, 7))}
    done = several.update(grads, on_nonfinite="skip")
    assert done.skipped
    assert {n: several.store.table(n).digest() for n in "abcd"} == before


def test_the_order_of_the_tables_has_no_effect(open_twin):
    digests = []
    for place, names in enumerate(("ab", "ba")):
        twin = open_twin(f"store-{place}")
        for name in "ab":
            twin.create_table(name, **config())
        rng = generator(39)
        shares = share(rng, "ab")
        twin.update({n: shares[n] for n in names})
        digests.append([twin.store.table(n).digest() for n in "ab"])
    assert digests[0] == digests[1]


def test_gradients_are_not_changed_nor_kept(twin):
    keys, grads = batch(generator(40), 50, dim=7)
    given = keys.copy(), grads.copy()
    twin.on("a", "update", keys, grads, gradient_scale=3.0)
    assert np.array_equal(keys, given[0])
    assert np.array_equal(grads, given[1])
    keys[:], grads[:] = 0, 0.0
    twin.check()
