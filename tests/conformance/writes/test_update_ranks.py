"""update_ranks: one step of several ranks, of one table and of several (rule 6)."""

from functools import partial
from itertools import product

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError
from tests.conformance.cases import (
    OPTIMIZERS,
    assert_same,
    batch,
    config,
    each,
    float32,
    generator,
    normal,
    of_each_kind,
    ones,
    raising,
    refused,
    unchanged,
)


@pytest.fixture
def twin(open_twin):
    """A table of each optimizer, one more of the same layout and one of another."""
    return open_twin(**of_each_kind(), b=config(), c=config(dim=7, optimizer=OPTIMIZERS["adam"]))


def single(twin, name, ranks, **options):
    """Apply one table's step through its handle."""
    done = twin.store.table(name).update_ranks(ranks, **options)
    t = twin.reference.update_ranks([{name: rank} for rank in ranks], **options)
    assert (done.command, done.t) == (twin.reference.command_number, t[name])
    return done


def test_one_table(twin):
    for kind in each(OPTIMIZERS):
        rng = generator(51)
        for ranks in (1, 2, 4, 8):
            shares = [batch(rng, 80) for _ in range(ranks)]
            single(twin, kind, shares, gradient_scale=1 / ranks, learning_rate=0.2)


def test_four_quarters_are_not_one_whole(open_twin):
    twin = open_twin(**dict.fromkeys("abc", config(seed=7)))
    rng = generator(53)
    keys, grads = rng.integers(0, 50, 400), normal(rng, 400, 4)
    quarters = [(keys[i : i + 100], grads[i : i + 100]) for i in range(0, 400, 100)]
    twin.update_ranks([{"a": quarter} for quarter in quarters])
    twin.update_ranks([{"b": (keys, grads)}])
    twin.update({"c": (keys, grads)})
    a, b, c = (twin.store.table(name).lookup(np.arange(50)) for name in "abc")
    assert not np.array_equal(a, b)
    np.testing.assert_allclose(a, b, atol=1e-5)
    assert_same(b, c)


def test_a_rank_without_the_key_is_skipped_and_not_added_as_zero(open_twin):
    """-0.0 + 0.0 is 0.0; the row's -0.0 - lr * -0.0 shows which it was."""
    twin = open_twin(a=config())
    twin.on("a", "assign", [1], ones(1, 4, -0.0))
    ranks = [([2], ones(1)), ([1], ones(1, 4, 0.0)), ([3], ones(1))]
    single(twin, "a", ranks)
    assert_same(twin.store.table("a").lookup([1]), float32(*[0x80000000] * 4).reshape(1, 4))
    single(twin, "a", [([2], ones(1)), ([1], ones(1, 4, -0.0)), ([3], ones(1))])
    assert_same(twin.store.table("a").lookup([1]), float32(*[0] * 4).reshape(1, 4))


def test_ranks_without_keys_count(twin):
    for kind in each(OPTIMIZERS):
        empty = ([], np.empty((0, 4), np.float32))
        assert single(twin, kind, [empty, empty]).t == 1
        assert single(twin, kind, [empty, ([1], ones(1)), empty]).t == 2


def test_repeated_keys_within_and_between_ranks(twin):
    for kind in each(OPTIMIZERS):
        rng = generator(54)
        ranks = [(np.repeat([1, 2], [n, 70]), normal(rng, n + 70, 4)) for n in (1, 64, 65)]
        single(twin, kind, ranks, gradient_scale=1 / 3)


NONFINITE = {
    "an entry": [[np.nan, 1.0]],
    "a rank's sum": [[3e38, 3e38]],
    "the sum of ranks": [[3e38], [3e38]],
    "its square": [[1.5e19], [1.5e19]],
}
"""By rank, what it sends of key 7."""


def test_nonfinite_sum_is_refused_or_skipped_for_all_ranks(twin):
    bad = []
    for kind, sent in product(OPTIMIZERS, NONFINITE.values()):
        shares = []
        for values in sent:
            grads = np.array(values, np.float32)[:, None] * ones(1)
            shares.append(([3, *[7] * len(values)], np.concatenate([ones(1), grads])))
        bad.append((kind, shares, [{"b": ([1], ones(1))}, *({kind: share} for share in shares)]))
    with unchanged(twin.store):
        for kind, shares, ranks in each(bad):
            for call in (
                partial(twin.store.update_ranks, ranks),
                partial(twin.store.table(kind).update_ranks, shares),
            ):
                with raising(InvalidArgumentError, f"table '{kind}'", "key 7"):
                    call()
    for kind, _, ranks in each(bad):
        before = twin.store.command
        done = twin.store.update_ranks(ranks, on_nonfinite="skip")
        assert (done.skipped, done.t, done.command) == (True, {kind: 0, "b": 0}, before + 1)
        twin.reference.command_number += 1


def test_sums_that_cancel_between_ranks_in_a_finite_way_are_taken(twin):
    for kind in each(OPTIMIZERS):
        single(
            twin, kind, [([7], ones(1, 4, 3e38)), ([7], ones(1, 4, -3e38)), ([7], ones(1, 4, 1e18))]
        )


def test_scale_that_overflows_the_ranks_sum_is_refused(twin):
    for kind in each(OPTIMIZERS):
        ranks = [([7], ones(1, 4, 1e30)), ([8], ones(1))]
        with refused(twin.store, InvalidArgumentError, f"table '{kind}'", "key 7"):
            twin.store.table(kind).update_ranks(ranks, gradient_scale=1e10)


def test_first_table_of_the_call_and_its_first_key_are_named(twin):
    for kind in each(OPTIMIZERS):
        bad = ones(2, 4, np.inf)
        ranks = [
            {"c": ([4], ones(1, 7))},
            {"b": ([9, 2], bad)},
            {kind: ([5], bad[:1]), "c": ([3], ones(1, 7, np.inf))},
        ]
        with refused(twin.store, InvalidArgumentError, "table 'c'", "key 3"):
            twin.store.update_ranks(ranks)
        with refused(twin.store, InvalidArgumentError, "table 'b'", "key 9"):
            twin.store.update_ranks(ranks[1:2])
