"""The reference model against contract.md: every vector of that page, and every rule without one.

What has no vector is checked against plain Python: scalars rounded to fp32 through `struct`, which
shares nothing with NumPy's fp32 loops. (A double holds 53 bits, at least 2 * 24 + 2: rounding the
float64 result of one +, -, *, / or sqrt of fp32 numbers gives the fp32 result, denormals apart.)
"""

import hashlib
import math
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embstore.config import Adagrad, Adam, Constant, Normal, RowWiseAdagrad, Sgd, Uniform
from embstore.errors import InvalidArgumentError, TableExistsError, TableNotFoundError
from tests import reference as ref
from tests.reference import ReferenceStore

fp32 = np.float32
G = np.arange(1, 13).astype(fp32).reshape(3, 4) * fp32(0.1)
INF, NAN = fp32("inf"), fp32("nan")
OPTIMIZERS = {
    "sgd": Sgd(learning_rate=0.05),
    "adagrad": Adagrad(learning_rate=0.05),
    "rowwise_adagrad": RowWiseAdagrad(learning_rate=0.05),
    "adam": Adam(learning_rate=0.01),
}
every_optimizer = pytest.mark.parametrize("kind", OPTIMIZERS)


def bits(values):
    """Return fp32 values as the contract prints them: hex words joined by spaces."""
    return " ".join(f"{word:08x}" for word in np.asarray(values, fp32).reshape(-1).view(np.uint32))


def make_table(
    kind="sgd", *, optimizer=None, initializer=None, store=None, dim=4, rows=3, name="v"
):
    """Return rule 4's table, or a variation of it."""
    return (store or ReferenceStore()).create_table(
        name,
        dim=dim,
        rows=rows,
        optimizer=optimizer or OPTIMIZERS[kind],
        initializer=initializer or Uniform(-0.1, 0.1),
        seed=7,
    )


def state_of(table):
    """Return all content of a table that a refused command must leave alone."""
    keys = sorted(table.written)
    weights, state = table.read_rows(keys)
    return table.t, keys, bits(weights), bits(state), table.digest(), table._store.command_number


def round32(number):
    """Round a float to fp32 and back."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


# Rule 1: numbers


def test_power_is_square_and_multiply():
    b = 0.999
    b2 = b * b
    b4 = b2 * b2
    b8 = b4 * b4
    assert ref.power(b, 13) == (b * b4) * b8
    assert ref.power(b, 0) == 1.0
    assert ref.power(0.0, 5) == 0.0


def test_canonical_changes_nan_only():
    words = np.array([0xFFC00001, 0x7F800001, 0xFF800000, 0x80000000, 1], np.uint32)
    assert bits(ref.canonical(words.view(fp32))) == "7fc00000 7fc00000 ff800000 80000000 00000001"


def test_update_keeps_denormals():
    table = make_table(dim=1, initializer=Constant(0.0))
    table.update([0], np.full((1, 1), 1e-40, fp32), learning_rate=0.5)
    expected = np.uint32(fp32(1e-40).view(np.uint32) // 2 + 0x80000000)
    assert bits(table.lookup([0])) == f"{expected:08x}"


def test_update_makes_canonical_nan():
    table = make_table(dim=1)
    table.assign([0], np.full((1, 1), INF))
    table.update([0], np.full((1, 1), 3e38, fp32), learning_rate=10.0)  # inf - inf
    assert bits(table.lookup([0])) == "7fc00000"


def test_state_of_nan_is_canonical():
    table = make_table("adagrad", dim=1)
    nan = np.array([[0xFFC00001]], np.uint32).view(fp32)
    table.put_rows([0], np.zeros((1, 1), fp32), nan, 0)
    table.update([0], np.ones((1, 1), fp32))
    assert [bits(part) for part in table.read_rows([0])] == ["7fc00000", "7fc00000"]


# Rule 2: sum over occurrences


def test_sum_occurrences_vector():
    terms = [np.full(1, 1 / 3, fp32)] * 130
    assert bits(ref.sum_occurrences(terms)) == "422d5557"
    assert bits(ref.sum_sequentially(terms)) == "422d5550"


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 128, 129, 200])
def test_sum_occurrences_adds_chunks_of_64(count):
    values = np.random.default_rng(count).normal(size=count).astype(fp32)
    totals = []
    for start in range(0, count, 64):
        chunk = values[start : start + 64].tolist()
        total = chunk[0]
        for value in chunk[1:]:
            total = round32(total + value)
        totals.append(total)
    total = totals[0]
    for chunk_total in totals[1:]:
        total = round32(total + chunk_total)
    assert bits(ref.sum_occurrences([np.array([v]) for v in values])) == bits(total)


def test_sums_start_from_the_first_term():
    minus_zero = np.full(1, -0.0, fp32)
    assert bits(ref.sum_occurrences([minus_zero] * 100)) == "80000000"


def test_update_sums_occurrences_in_batch_order():
    values = np.array([1e8, 1.0, -1e8, 3.0], fp32).reshape(4, 1)  # 1e8 + 1.0 is 1e8
    table = make_table(dim=1, initializer=Constant(0.0))
    table.update([1, 1, 1, 1], values, learning_rate=1.0)
    table.update([2, 2, 2, 2], values[[0, 2, 1, 3]], learning_rate=1.0)
    assert table.lookup([1, 2]).tolist() == [[-3.0], [-4.0]]


# Rule 3: sum over dim


def test_sum_over_dim_vector():
    assert bits(ref.sum_over_dim(np.arange(1, 71).astype(fp32) * fp32(0.1))) == "43788000"


@pytest.mark.parametrize("dim", [1, 3, 16, 31, 32, 33, 64, 100, 128])
def test_sum_over_dim_folds_like_a_warp(dim):
    values = np.random.default_rng(dim).random(dim).astype(fp32)
    lanes = [0.0] * 32
    for d, value in enumerate(values.tolist()):
        lanes[d % 32] = round32(lanes[d % 32] + value)
    for half in (16, 8, 4, 2, 1):
        for lane in range(half):
            lanes[lane] = round32(lanes[lane] + lanes[lane + half])
    assert bits(ref.sum_over_dim(values)) == bits(lanes[0])


# Rule 4: one update


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("sgd", "be1d79cf be2c594d bcc0420c bcf7ec03"),
        ("adagrad", "be1d734e be20493a 3a8a3920 3bf9578e"),
        ("rowwise_adagrad", "be0fc557 be1ad8e3 bb2ef974 bbbca65e"),
        ("adam", "bdedf6a4 bdeddc34 3d31d887 3d52a866"),
    ],
)
def test_update_vector(kind, expected):
    table = make_table(kind)
    assert table.update([2, 0, 2], G) == 1
    assert table.update([2], G[:1]) == 2
    assert bits(table.lookup([2])) == expected


def test_gradient_scale_vector():
    table = make_table()
    table.update([2, 0, 2], G, gradient_scale=1 / 3)
    assert bits(table.lookup([2])) == "bdec71ea bdf24c32 3d1c752c 3d306992"


def scalar_update(optimizer, rate, t, w, state, g):
    """Return (w, state) of rule 4 by Python floats, every operation rounded to fp32."""

    def mean_square():
        lanes = [0.0] * 32
        for d, x in enumerate(g):
            lanes[d % 32] = round32(lanes[d % 32] + round32(x * x))
        for half in (16, 8, 4, 2, 1):
            lanes = [round32(lanes[i] + lanes[i + half]) for i in range(half)]
        return round32(lanes[0] / len(g))

    def root(x, eps):
        return round32(round32(math.sqrt(x)) + eps)

    lr, dim = round32(rate), len(g)
    if optimizer.kind == "sgd":
        return [round32(w[i] - round32(lr * g[i])) for i in range(dim)], []
    eps = round32(optimizer.epsilon)
    if optimizer.kind == "adagrad":
        s = [round32(state[i] + round32(g[i] * g[i])) for i in range(dim)]
        steps = [round32(round32(lr * g[i]) / root(s[i], eps)) for i in range(dim)]
        return [round32(w[i] - steps[i]) for i in range(dim)], s
    if optimizer.kind == "rowwise_adagrad":
        s = [round32(state[0] + mean_square())]
        factor = round32(lr / root(s[0], eps))
        return [round32(w[i] - round32(factor * g[i])) for i in range(dim)], s
    b1, b2 = optimizer.beta1, optimizer.beta2
    lr_t = round32(rate * math.sqrt(1 - ref.power(b2, t)) / (1 - ref.power(b1, t)))
    eps_t = round32(optimizer.epsilon * math.sqrt(1 - ref.power(b2, t)))
    b1, c1, b2, c2 = round32(b1), round32(1 - b1), round32(b2), round32(1 - b2)
    m = [round32(round32(b1 * state[i]) + round32(c1 * g[i])) for i in range(dim)]
    v = [
        round32(round32(b2 * state[dim + i]) + round32(round32(c2 * g[i]) * g[i]))
        for i in range(dim)
    ]
    steps = [round32(round32(lr_t * m[i]) / root(v[i], eps_t)) for i in range(dim)]
    return [round32(w[i] - steps[i]) for i in range(dim)], m + v


@every_optimizer
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    dim=st.integers(1, 40),
    seed=st.integers(0, 2**32),
    scale=st.floats(0.25, 4.0),
    epsilon=st.sampled_from([1e-8, 0.3]),
)
def test_update_rounds_every_operation_once(kind, dim, seed, scale, epsilon):
    optimizer = OPTIMIZERS[kind]
    if kind != "sgd":  # beside a large epsilon its own rounding shows
        optimizer = replace(optimizer, epsilon=epsilon)
    table = make_table(optimizer=optimizer, dim=dim)
    weights, state = (part[0].tolist() for part in table.read_rows([1]))
    rng = np.random.default_rng(seed)
    for t in range(1, 6):
        grads, rate = rng.normal(size=(1, dim)).astype(fp32), float(rng.random() + 0.001)
        table.update([1], grads, learning_rate=rate, gradient_scale=scale)
        g = [round32(round32(scale) * x) for x in grads[0].tolist()]
        weights, state = scalar_update(optimizer, rate, t, weights, state, g)
    found_weights, found_state = table.read_rows([1])
    assert bits(found_weights) == bits(weights)
    assert bits(found_state) == bits(state)


def test_state_layout_and_start():
    for optimizer, start in [
        (Sgd(0.1), []),
        (Adagrad(0.1, initial_accumulator=0.1), [fp32(0.1)] * 2),
        (RowWiseAdagrad(0.1, initial_accumulator=0.1), [fp32(0.1)]),
        (Adam(0.1), [0.0] * 4),
    ]:
        table = ReferenceStore().create_table(
            "x", dim=2, rows=1, optimizer=optimizer, initializer=Constant(1.0)
        )
        assert table.read_rows([0])[1].tolist() == [start]


def test_zero_gradient_and_rate_are_not_shortcut():
    table = make_table(dim=1)
    table.assign([0, 1], np.full((2, 1), -0.0, fp32))
    table.update([0, 1, 2], np.array([[-1.0], [1.0], [0.0]], fp32), learning_rate=0.0)
    assert bits(table.lookup([0, 1])) == "00000000 80000000"  # -0.0 - -0.0, -0.0 - 0.0
    assert table.written == {0, 1, 2}


def test_adam_is_lazy_and_counts_t_of_the_table():
    early, late = make_table("adam"), make_table("adam")
    early.update([0], G[:1])
    before = early.read_rows([0])
    early.update([1], G[:1])
    assert [bits(x) for x in early.read_rows([0])] == [bits(x) for x in before]
    late.update([], np.zeros((0, 4), fp32))
    late.update([1], G[:1])
    assert bits(late.lookup([1])) == bits(early.lookup([1]))
    assert bits(late.lookup([1])) != bits(make_table("adam").lookup([1]))


def test_learning_rate_of_the_call_or_else_of_the_table():
    one, two, three = make_table(), make_table(), make_table()
    one.update([0], G[:1], learning_rate=0.5)
    two.learning_rate = 0.5
    two.update([0], G[:1])
    three.update([0], G[:1])
    assert one.digest() == two.digest() != three.digest()
    assert (one.learning_rate, two.learning_rate) == (0.05, 0.5)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, 1e39, None, "1"])
def test_scale_and_rate_are_finite_and_not_negative(value):
    table = make_table()
    before = state_of(table)
    with pytest.raises(InvalidArgumentError):
        table.update([0], G[:1], gradient_scale=value)
    with pytest.raises(InvalidArgumentError):
        table.learning_rate = value
    if value is not None:
        with pytest.raises(InvalidArgumentError):
            table.update([0], G[:1], learning_rate=value)
    assert state_of(table) == before


def test_float16_gradients_are_widened():
    one, two = make_table(), make_table()
    one.update([0], G[:1].astype(np.float16))
    two.update([0], G[:1].astype(np.float16).astype(fp32))
    assert one.digest() == two.digest()


# Rule 5: counting and order


def test_every_acknowledged_command_takes_the_next_number():
    store = ReferenceStore()
    table = make_table(store=store)
    assert store.command_number == 1
    row, empty = np.zeros((1, 4), fp32), np.zeros((1, 0), fp32)
    snapshot = store.snapshot()
    for n, command in enumerate(
        [
            lambda: make_table(store=store),
            lambda: table.update([0], row),
            lambda: table.update([0], row + NAN, on_nonfinite="skip"),
            lambda: table.update_pooled([0], [0, 1], row, "sum"),
            lambda: store.update({}),
            lambda: store.update_ranks([{"v": ([], row[:0])}]),
            lambda: table.assign([0], row),
            lambda: table.put_rows([0], row, empty, 1),
            lambda: table.grow(3),
            lambda: setattr(table, "learning_rate", 0.1),
            lambda: store.restore(snapshot),
            lambda: store.drop_table("v"),
        ],
        start=2,
    ):
        command()
        assert store.command_number == n


def test_reads_and_refused_commands_take_no_number():
    store = ReferenceStore()
    table = make_table(store=store)
    store.lookup({"v": [0]})
    table.lookup_pooled([0], [0, 1], "sum")
    table.read_rows([0])
    table.digest()
    store.snapshot()
    with pytest.raises(InvalidArgumentError):
        table.update([0], np.full((1, 4), INF))
    with pytest.raises(TableNotFoundError):
        store.drop_table("w")
    assert store.command_number == 1
    assert table.written == set()


def test_t_counts_updates_that_name_the_table():
    store = ReferenceStore()
    make_table(store=store, name="a")
    make_table(store=store, name="b")
    assert store.update({"a": ([0], G[:1]), "b": ([], G[:0])}) == {"a": 1, "b": 1}
    assert store.update({"b": ([1], G[:1])}) == {"b": 2}
    assert store.table("a").t == 1


def test_order_of_tables_and_of_different_keys_has_no_effect():
    one, two = ReferenceStore(), ReferenceStore()
    for store in (one, two):
        for name in ("a", "b"):
            make_table("adam", store=store, name=name)
    one.update({"a": ([0, 1, 0], G), "b": ([2], G[:1])})
    two.update({"b": ([2], G[:1]), "a": ([1, 0, 0], G[[1, 0, 2]])})
    for name in ("a", "b"):
        assert one.table(name).digest() == two.table(name).digest()


def test_update_with_one_bad_table_changes_none():
    store = ReferenceStore()
    a, _ = make_table(store=store, name="a"), make_table(store=store, name="b")
    before = state_of(a)
    with pytest.raises(TableNotFoundError):
        store.update({"a": ([0], G[:1]), "nope": ([0], G[:1])})
    with pytest.raises(InvalidArgumentError):
        store.update({"a": ([0], G[:1]), "b": ([3], G[:1])})
    assert state_of(a) == before


# Rule 6: several ranks in one step


def test_ranks_vector():
    store = ReferenceStore()
    table = make_table(store=store)
    shares = [{"v": ([2, 0], G[:2])}, {"v": ([1], G[:1])}, {"v": ([2], G[2:])}]
    assert store.update_ranks(shares, gradient_scale=0.25) == {"v": 1}
    assert bits(table.lookup([0])) == "3dad672a 3d2e3464 bdaff3f5 bdbe31ce"
    assert bits(table.lookup([1])) == "bca2ad19 3d67a81d bd8e1c7c 3db14c0c"
    assert bits(table.lookup([2])) == "bde3e962 bde80ec1 3d3459dd 3d4bb814"


def test_ranks_are_added_in_rank_order_after_their_own_sums():
    store = ReferenceStore()
    table = make_table(store=store, dim=1, initializer=Constant(0.0))

    def share(*grads):
        return {"v": ([0] * len(grads), np.array(grads, fp32).reshape(-1, 1))}

    store.update_ranks([share(1e8), share(1.0, -1e8)], learning_rate=1.0)  # 1e8 + (1 - 1e8) = 0
    assert table.lookup([0]).tolist() == [[0.0]]
    store.update_ranks([share(1e8), share(-1e8), share(1.0)], learning_rate=1.0)
    assert table.lookup([0]).tolist() == [[-1.0]]


def test_rank_without_the_key_is_skipped_not_added_as_zero():
    store = ReferenceStore()
    table = make_table(store=store, dim=1)
    table.assign([0], np.full((1, 1), -0.0, fp32))
    minus_zero = np.full((1, 1), -0.0, fp32)
    store.update_ranks([{"v": ([1], minus_zero)}, {"v": ([0], minus_zero)}, {}], learning_rate=1.0)
    assert bits(table.lookup([0])) == "00000000"  # -0.0 - -0.0; with g = 0.0 it would stay -0.0


def test_ranks_grow_t_of_every_table_that_any_named():
    store = ReferenceStore()
    for name in ("a", "b", "c"):
        make_table(store=store, name=name)
    none = ([], G[:0])
    assert store.update_ranks([{"a": none}, {"b": none, "a": ([0], G[:1])}]) == {"a": 1, "b": 1}
    assert store.table("c").t == 0


def test_one_rank_is_a_plain_update_and_four_quarters_are_not_one_whole():
    stores = [ReferenceStore() for _ in range(3)]
    tables = [make_table("adam", store=store, dim=32) for store in stores]
    rng = np.random.default_rng(0)
    grads = rng.normal(size=(100, 32)).astype(fp32)
    keys = rng.integers(0, 3, 100)
    stores[0].update({"v": (keys, grads)})
    stores[1].update_ranks([{"v": (keys, grads)}])
    quarters = [slice(i, i + 25) for i in range(0, 100, 25)]
    stores[2].update_ranks([{"v": (keys[q], grads[q])} for q in quarters])
    assert tables[0].digest() == tables[1].digest() != tables[2].digest()


def test_ranks_refuse_a_share_that_is_not_finite():
    store = ReferenceStore()
    table = make_table(store=store, dim=1)
    before = state_of(table)
    big, bad = np.full((1, 1), 3e38, fp32), np.full((1, 1), INF)
    for shares in (
        [{"v": ([0], big)}, {"v": ([0], bad)}],
        [{"v": ([0], bad)}, {"v": ([0], -bad)}],
        [{"v": ([0], big)}, {"v": ([0], big)}],  # finite shares, but not their sum
    ):
        with pytest.raises(InvalidArgumentError, match=r"'v'.*key 0"):
            store.update_ranks(shares, gradient_scale=0.25)
    assert state_of(table) == before


# Rule 7: writing


@every_optimizer
def test_lookups_never_write(kind):
    table = make_table(kind)
    before = table.digest()
    table.lookup([0, 1, 1])
    table.lookup_pooled([0, 1], [0, 2], "mean")
    table.read_rows([2])
    assert table.written == set()
    assert table.digest() == before


@every_optimizer
def test_assign_resets_state_and_keeps_t(kind):
    table = make_table(kind)
    start = table.read_rows([0])[1]
    table.update([0, 1], G[:2])
    table.assign([0, 2, 0], G)
    weights, state = table.read_rows([0, 2])
    assert bits(weights) == bits(G[[2, 1]])
    assert bits(state) == bits(np.repeat(start, 2, axis=0))
    assert table.t == 1
    assert table.written == {0, 1, 2}


@every_optimizer
def test_put_rows_sets_state_and_adds_t(kind):
    source, copy = make_table(kind), make_table(kind)
    source.update([2, 0, 2], G)
    source.update([2], G[:1])
    weights, state = source.read_rows([0, 2])
    copy.put_rows([2, 0, 2], weights[[0, 0, 1]], state[[0, 0, 1]], 2)
    assert copy.t == 2
    assert copy.digest() == source.digest()
    copy.put_rows([], weights[:0], state[:0], 5)
    assert copy.t == 7


def test_assign_and_put_rows_allow_inf_and_canonicalise_nan():
    rows = np.array([[0xFFC00001, 0x7F800000, 0xFF800000, 0x80000000]], np.uint32).view(fp32)
    table = make_table("adagrad")
    table.assign([0], rows)
    table.put_rows([1], rows, rows, 0)
    expected = "7fc00000 7f800000 ff800000 80000000"
    assert bits(table.lookup([0])) == expected
    assert [bits(part) for part in table.read_rows([1])] == [expected, expected]


@pytest.mark.parametrize("add_t", [-1, 1.0, 2**64 - 1])
def test_put_rows_refuses_an_add_t_below_0_or_beyond_64_bits(add_t):
    table = make_table()
    table.update([], G[:0])
    with pytest.raises(InvalidArgumentError):
        table.put_rows([0], G[:1], np.zeros((1, 0), fp32), add_t)
    assert table.written == set()


def test_results_and_arguments_are_not_aliased():
    table = make_table()
    rows = G[:1].copy()
    table.assign([0], rows)
    rows[:] = 0
    found = table.lookup([0])
    assert bits(found) == bits(G[:1])
    found[:] = 0
    assert bits(table.lookup([0])) == bits(G[:1])


# Rule 8: pooling


@pytest.mark.parametrize(
    ("mode", "weights", "expected"),
    [
        ("sum", None, "bdda6b99 be161b42 3d3bff04 3d67d95a"),
        ("mean", None, "bd119d11 bd482458 3c7aa95b 3c9a90e7"),
        ("sum", [0.5, 2, -1 / 3], "3e2957fc 3dab5e4e be13881c be1dd01c"),
    ],
)
def test_lookup_pooled_vector(mode, weights, expected):
    if weights is not None:
        weights = np.array(weights, fp32)
    assert bits(make_table().lookup_pooled([2, 0, 2], [0, 3], mode, weights)) == expected


def test_bags_are_apart_and_empty_ones_are_zeros():
    table = make_table()
    rows = table.lookup([0, 1, 2])
    for mode in ("sum", "mean"):
        pooled = table.lookup_pooled([1, 0], [0, 0, 1, 2, 2], mode)
        assert bits(pooled) == bits(np.stack([0 * rows[0], rows[1], rows[0], 0 * rows[0]]) + 0)
    assert table.lookup_pooled([], [0], "sum").shape == (0, 4)
    assert bits(table.lookup_pooled([], [0, 0], "sum", np.zeros(0, fp32))) == bits(np.zeros(4))


def test_bag_beyond_64_rows_is_summed_in_chunks():
    table = make_table(dim=1, initializer=Constant(1 / 3))
    assert bits(table.lookup_pooled([0] * 130, [0, 130], "sum")) == "422d5557"


@pytest.mark.parametrize("count", [3, 7, 49])
def test_mean_divides_by_the_count_with_duplicates(count):
    values = np.random.default_rng(count).normal(size=50).astype(fp32)
    table = make_table(dim=50)
    table.assign([0], values[np.newaxis])
    pooled = table.lookup_pooled([0] * count, [0, count], "mean")
    total = [0.0] * 50
    for _ in range(count):
        total = [round32(x + value) for x, value in zip(total, values.tolist(), strict=True)]
    assert bits(pooled) == bits([round32(x / count) for x in total])


def test_bag_of_minus_zero_keeps_its_sign():
    table = make_table(dim=1, initializer=Constant(-0.0))
    assert bits(table.lookup_pooled([0, 1], [0, 2], "sum")) == "80000000"


def test_pooled_nan_is_canonical():
    table = make_table(dim=1)
    table.assign([0, 1], np.array([[INF], [-INF]]))
    assert bits(table.lookup_pooled([0, 1], [0, 2], "sum")) == "7fc00000"
    zero = np.zeros(1, fp32)
    assert bits(table.lookup_pooled([0], [0, 1], "sum", zero)) == "7fc00000"


@pytest.mark.parametrize(
    ("keys", "offsets", "mode", "weights"),
    [
        ([0, 1], [0, 2], "mean", np.ones(2, fp32)),
        ([0, 1], [0, 2], "max", None),
        ([0, 1], [0, 2], "sum", np.array([1.0, NAN], fp32)),
        ([0, 1], [0, 2], "sum", np.array([1.0, INF], fp32)),
        ([0, 1], [0, 2], "sum", np.ones(1, fp32)),
        ([0, 1], [0, 2], "sum", np.ones(2)),
        ([0, 1], [], "sum", None),
        ([0, 1], [0, 1], "sum", None),
        ([0, 1], [1, 2], "sum", None),
        ([0, 1], [0, 2, 1, 2], "sum", None),
        ([0, 1], [0.0, 2.0], "sum", None),
        ([0, 3], [0, 2], "sum", None),
    ],
)
def test_pooled_calls_refuse_bad_bags(keys, offsets, mode, weights):
    table = make_table()
    before = state_of(table)
    with pytest.raises(InvalidArgumentError):
        table.lookup_pooled(keys, offsets, mode, weights)
    with pytest.raises(InvalidArgumentError):
        table.update_pooled(keys, offsets, G[: max(len(offsets) - 1, 0)], mode, weights)
    assert state_of(table) == before


@pytest.mark.parametrize("mode", ["sum", "mean", "weighted"])
def test_update_pooled_is_an_update_of_occurrences(mode):
    keys, offsets = [2, 0, 2, 1, 2], [0, 3, 3, 5]
    weights = np.array([0.3, -0.7, 1.1, 0.0, 2.0], fp32) if mode == "weighted" else None
    pooled, plain = make_table("adagrad"), make_table("adagrad")
    t = pooled.update_pooled(
        keys, offsets, G, "sum" if weights is not None else mode, weights, gradient_scale=0.3
    )
    per_bag = [
        [
            [round32(x / 3.0 if bag == 0 else x / 2.0) for x in G[bag].tolist()]
            if mode == "mean"
            else [round32(x * (1.0 if weights is None else float(weights[i]))) for x in G[bag]]
            for i in range(offsets[bag], offsets[bag + 1])
        ]
        for bag in range(3)
    ]
    grads = np.array([grad for bag in per_bag for grad in bag]).astype(fp32)
    assert t == plain.update(keys, grads, gradient_scale=0.3) == 1
    assert pooled.digest() == plain.digest()


def test_update_pooled_ignores_the_gradient_of_an_empty_bag():
    one, two = make_table(), make_table()
    grads = np.stack([np.full(4, NAN), G[0]])
    one.update_pooled([1], [0, 0, 1], grads, "mean")
    two.update([1], G[:1])
    assert one.digest() == two.digest()


# Rule 9: finite


def test_nonfinite_names_first_table_in_call_order_and_first_key_by_occurrence():
    store = ReferenceStore()
    for name in ("a", "b"):
        make_table(store=store, name=name)
    bad = np.full((3, 4), 0.0, fp32)
    bad[1:, 3] = NAN
    with pytest.raises(InvalidArgumentError, match=r"'b'.*key 2"):
        store.update({"b": ([1, 2, 0], bad), "a": ([0, 1, 2], bad)})
    with pytest.raises(InvalidArgumentError, match=r"'a'.*key 0"):
        store.update({"a": ([0, 1, 0], bad), "b": ([1, 2, 0], bad)})


@pytest.mark.parametrize(
    ("grads", "scale"),
    [
        ([NAN, 1.0], 1.0),
        ([INF, -INF], 1.0),
        ([3e38, 3e38], 1.0),
        ([3e38, 3e38], 0.0),
        ([INF, 0.0], 0.0),
        ([3e38, 0.0], 2.0),
    ],
)
def test_nonfinite_sum_or_scaled_sum_is_refused_or_skipped(grads, scale):
    store = ReferenceStore()
    table, other = make_table("adam", store=store, dim=1), make_table(store=store, name="w")
    table.update([1], np.ones((1, 1), fp32))
    before, other_before = state_of(table), state_of(other)
    updates = {"w": ([0], G[:1]), "v": ([0, 0], np.array(grads, fp32).reshape(2, 1))}
    with pytest.raises(InvalidArgumentError):
        store.update(updates, gradient_scale=scale)
    assert (state_of(table), state_of(other)) == (before, other_before)
    assert store.update(updates, None, scale, "skip") == {"w": 0, "v": 1}
    assert (state_of(table)[:-1], state_of(other)[:-1]) == (before[:-1], other_before[:-1])


def test_finite_gradients_may_make_inf_rows():
    table = make_table("adagrad", dim=1)
    table.update([0], np.full((1, 1), 1e30, fp32))  # g*g is inf, and lr*g / inf is 0
    weights, state = table.read_rows([0])
    assert bits(state) == bits(INF)
    assert np.isfinite(weights).all()


def test_skip_does_not_excuse_bad_arguments():
    table = make_table()
    with pytest.raises(InvalidArgumentError):
        table.update([3], np.full((1, 4), NAN), on_nonfinite="skip")
    with pytest.raises(InvalidArgumentError):
        table.update([0], G[:1], on_nonfinite="ignore")
    assert table.update([0], np.full((1, 4), NAN), on_nonfinite="skip") == 0


# Rule 10: initial rows


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_vector(counter, key, expected):
    assert " ".join(f"{int(word):08x}" for word in ref.philox(counter, key)) == expected


def test_uniform_vector():
    assert bits(ref.initial_weights(Uniform(-0.01, 0.01), 7, 5, 8)) == (
        "bb538884 bb56a4f0 3c00fff6 3b8fbcfe 3a785e50 bba0cc92 bba76ab6 3b660000"
    )


def test_normal_vector():
    assert bits(ref.initial_weights(Normal(0, 0.02), 7, 5, 4)) == (
        "bba3f4e6 bc0cf96c 3ce1ad7d 3cb03a85"
    )


def test_default_seed_vector():
    assert ref.default_seed("v") == 16735848030510122220
    table = ReferenceStore().create_table(
        "v", dim=1, rows=1, optimizer=Sgd(0.1), initializer=Constant(0.0)
    )
    assert table.config.seed == 16735848030510122220


def scalar_philox(counter, key):
    """Philox4x32-10 in Python integers."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c2, 2**32)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


SEED, KEY = 0xFEDCBA9876543210, 2**39 + 2**33 + 5


@pytest.mark.parametrize("dim", [1, 3, 4, 5, 128])
def test_uniform_uses_both_words_of_seed_and_key(dim):
    low, high = round32(-0.3), round32(0.7)
    expected = []
    for e in range(dim):
        counter = (KEY % 2**32, KEY >> 32, e // 4, 0)
        word = scalar_philox(counter, (SEED % 2**32, SEED >> 32))[e % 4]
        product = round32(round32(high - low) * ((word >> 8) * 2.0**-24))
        expected.append(round32(low + product))
    assert bits(ref.initial_weights(Uniform(-0.3, 0.7), SEED, KEY, dim)) == bits(expected)


def test_uniform_takes_the_difference_of_rounded_bounds():
    low, high = -1.0, 1.0 + 2.0**-24 + 2.0**-30  # high rounds up to 1 + 2**-23
    row = ref.initial_weights(Uniform(low, high), 7, 5, 128)
    assert bits(row) == bits(ref.initial_weights(Uniform(-1.0, 1.0 + 2.0**-23), 7, 5, 128))
    low, high = 0.1, 0.3
    span = round32(round32(high) - round32(low))
    assert span != round32(high - low)
    words = [w for b in range(32) for w in scalar_philox((5, 0, b, 0), (7, 0))]
    u = [(word >> 8) * 2.0**-24 for word in words]
    expected = [round32(round32(low) + round32(span * x)) for x in u]
    assert bits(ref.initial_weights(Uniform(low, high), 7, 5, 128)) == bits(expected)


@pytest.mark.parametrize("dim", [1, 5, 128])
def test_normal_uses_one_block_per_element(dim):
    mean, std, expected = round32(0.1), round32(0.3), []
    for e in range(dim):
        words = scalar_philox((KEY % 2**32, KEY >> 32, e, 1), (SEED % 2**32, SEED >> 32))
        s = sum((word >> 16) + (word & 0xFFFF) for word in words) - 262140
        product = round32(std * round32(s * round32(1 / 53509.9)))
        expected.append(round32(mean + product))
    assert bits(ref.initial_weights(Normal(0.1, 0.3), SEED, KEY, dim)) == bits(expected)


def test_initial_rows_look_as_asked():
    uniform = np.stack([ref.initial_weights(Uniform(-1, 3), 1, k, 64) for k in range(100)])
    assert (uniform.min(), uniform.max()) == (
        pytest.approx(-1, abs=0.01),
        pytest.approx(3, abs=0.01),
    )
    normal = np.stack([ref.initial_weights(Normal(1, 2), 1, k, 64) for k in range(100)])
    assert normal.mean() == pytest.approx(1, abs=0.1)
    assert normal.std() == pytest.approx(2, abs=0.1)


def test_constant_is_rounded_and_rows_are_of_the_right_table():
    table = make_table(initializer=Constant(0.1))
    assert table.lookup([2]).tolist() == [[fp32(0.1)] * 4]
    uniform = make_table()
    assert bits(uniform.lookup([2])) == bits(ref.initial_weights(Uniform(-0.1, 0.1), 7, 2, 4))


def test_default_seeds_of_two_tables_differ():
    store = ReferenceStore()
    rows = [
        store.create_table(
            name, dim=4, rows=1, optimizer=Sgd(0.1), initializer=Uniform(0, 1)
        ).lookup([0])
        for name in ("a", "b")
    ]
    assert bits(rows[0]) != bits(rows[1])


# Rule 11: digest

J_SGD = (
    b'{"dim":4,"dtypes":{"weights":"float32"},"initializer":{"high":0.1,"kind":"uniform",'
    b'"low":-0.1},"key_space":"dense","name":"v","optimizer":{"kind":"sgd"},"seed":7}'
)
J_ROWWISE = (
    b'{"dim":4,"dtypes":{"state":"float32","weights":"float32"},"initializer":{"high":0.1,'
    b'"kind":"uniform","low":-0.1},"key_space":"dense","name":"v","optimizer":{"epsilon":1e-08,'
    b'"initial_accumulator":0.0,"kind":"rowwise_adagrad"},"seed":7}'
)


@pytest.mark.parametrize(
    ("kind", "identity", "expected"),
    [
        ("sgd", J_SGD, "c099f16ab0b1b6b8bd9520e0380e272527408843f4ff45b731116709fd975235"),
        (
            "rowwise_adagrad",
            J_ROWWISE,
            "ba995de3753d3c3d56e4c1fbdaeff2ce0747166c48502bf1cf458cf827fa059b",
        ),
    ],
)
def test_digest_vector(kind, identity, expected):
    table = make_table(kind)
    table.update([2, 0, 2], G)
    table.update([2], G[:1])
    assert table.config.identity_json() == identity
    assert table.digest() == expected


def blake(*parts):
    """blake2b-256 of the parts joined."""
    return hashlib.blake2b(b"".join(parts), digest_size=32).digest()


def test_digest_of_an_empty_table_is_of_identity_and_t():
    table = make_table()
    expected = blake(struct.pack("<Q", len(J_SGD)), J_SGD, struct.pack("<Q", 0))
    assert table.digest() == expected.hex()


def test_digest_cuts_blocks_at_256_keys_and_ignores_the_order_of_writing():
    table = make_table(rows=1000, dim=4)
    keys = [999, 256, 0, 255]
    rows = np.arange(16).astype(fp32).reshape(4, 4)
    table.assign(keys, rows)

    def record(i):
        return struct.pack("<q4f", keys[i], *rows[i])

    leaves = {0: blake(record(2), record(3)), 1: blake(record(1)), 3: blake(record(0))}
    blocks = [part for b, leaf in leaves.items() for part in (struct.pack("<Q", b), leaf)]
    head = [struct.pack("<Q", len(J_SGD)), J_SGD, struct.pack("<Q", 0)]
    assert table.digest() == blake(*head, *blocks).hex()


def test_digest_leaves_tunables_out_and_takes_t_and_written_in():
    table = make_table()
    start = table.digest()
    table.learning_rate = 0.5
    table.grow(100)
    assert table.digest() == start
    table.update([], G[:0])
    counted = table.digest()
    assert counted != start
    table.assign([0], table.lookup([0]))  # same weights, but written now
    assert table.digest() != counted


# The store around the rules


def test_create_again_returns_the_table_or_refuses_another():
    store = ReferenceStore()
    table = make_table(store=store)
    table.learning_rate = 0.5
    assert make_table(store=store) is table
    assert table.learning_rate == 0.5
    for other in ({"dim": 5}, {"rows": 4}, {"kind": "adam"}, {"initializer": Constant(0.0)}):
        with pytest.raises(TableExistsError):
            make_table(store=store, **other)
    with pytest.raises(TableExistsError):
        make_table(store=store, initializer=Uniform(-0.1, np.nextafter(0.1, 1)))


def test_drop_forgets_and_kills_handles():
    store = ReferenceStore()
    old = make_table(store=store)
    make_table(store=store, name="a")
    old.update([0], G[:1])
    assert store.tables() == ["a", "v"]
    store.drop_table("v")
    assert store.tables() == ["a"]
    with pytest.raises(TableNotFoundError):
        old.lookup([0])
    new = make_table(store=store)
    assert (new.t, new.written) == (0, set())
    with pytest.raises(TableNotFoundError):
        old.update([0], G[:1])
    with pytest.raises(TableNotFoundError):
        store.lookup({"nope": [0]})


def test_snapshot_and_restore_return_all_content():
    store = ReferenceStore()
    table, dropped = make_table("adam", store=store), make_table(store=store, name="d")
    table.update([0], G[:1])
    snapshot, before, dropped_before = store.snapshot(), state_of(table), state_of(dropped)
    for _ in range(2):
        table.update([0, 1], G[:2])
        table.learning_rate = 0.5
        table.grow(table.rows + 1)
        store.drop_table("d")
        make_table(store=store, name="new")
        number = store.command_number
        store.restore(snapshot)
        assert store.command_number == number + 1
        assert store.tables() == ["d", "v"]
        assert state_of(table)[:-1] == before[:-1]
        assert state_of(dropped)[:-1] == dropped_before[:-1]
        assert (table.rows, table.learning_rate) == (3, 0.01)


def test_grow_allows_more_keys_and_never_fewer():
    table = make_table()
    with pytest.raises(InvalidArgumentError):
        table.lookup([3])
    table.grow(4)
    assert table.lookup([3]).shape == (1, 4)
    for rows in (3, 2**40 + 1, 5.0):
        with pytest.raises(InvalidArgumentError):
            table.grow(rows)
    assert table.rows == 4


@pytest.mark.parametrize(
    ("keys", "grads"),
    [
        ([-1], G[:1]),
        ([3], G[:1]),
        ([0.0], G[:1]),
        ([True], G[:1]),
        (np.array([0], np.uint64), G[:1]),
        ([[0]], G[:1]),
        ([0, 1], G[:1]),
        ([0], G[:1, :3]),
        ([0], G[:1].astype(np.float64)),
        ([0], np.ones((1, 4), np.int64)),
    ],
)
def test_bad_arguments_change_nothing(keys, grads):
    table = make_table()
    before = state_of(table)
    for command in (
        lambda: table.update(keys, grads),
        lambda: table.assign(keys, grads),
        lambda: table.put_rows(keys, grads, np.zeros((len(keys), 0), fp32), 1),
    ):
        with pytest.raises(InvalidArgumentError):
            command()
    assert state_of(table) == before


def test_store_lookup_answers_every_table():
    store = ReferenceStore()
    a, b = make_table(store=store, name="a"), make_table("adam", store=store, name="b", dim=7)
    found = store.lookup({"b": [1, 1], "a": []})
    assert list(found) == ["b", "a"]
    assert bits(found["b"]) == bits(b.lookup([1, 1]))
    assert found["a"].shape == a.lookup([]).shape == (0, 4)
    assert found["b"].dtype == fp32
