"""The replica in torch tensors: the same bits as NumPy's, whatever the values are."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import embstore  # noqa: E402
from embstore import arithmetic  # noqa: E402
from embstore.config import Adagrad, Adam, Ftrl, RowWiseAdagrad, Sgd, Uniform  # noqa: E402
from embstore.errors import DeviceError, InvalidArgumentError  # noqa: E402
from embstore.profiles.hotset import HotSet  # noqa: E402
from embstore_training.hotcold.replica import Replica  # noqa: E402
from embstore_training.hotcold.run import HotColdRun  # noqa: E402
from embstore_training.hotcold.torch_replica import TorchReplica, apply_update, sum_over_dim  # noqa: E402
from tests.decayed import DECAYED, name_of  # noqa: E402

OPTIMIZERS = {
    "sgd": Sgd(0.1),
    "adagrad": Adagrad(0.1, epsilon=1e-6, initial_accumulator=0.25),
    "rowwise_adagrad": RowWiseAdagrad(0.1, initial_accumulator=0.5),
    "adam": Adam(0.01),
    "ftrl": Ftrl(0.05, l1=0.25, l2=0.1),
    **{name_of(optimizer): optimizer for optimizer in DECAYED},
}
DIMS = [1, 3, 31, 32, 33, 64, 100]
SPECIAL = [0x80000000, 0, 1, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000]
"""Bits of -0.0 and 0.0, denormals, the smallest normal, the largest, infinity."""
SPECIAL += [0xFF800000, 0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0x7F800001]
"""And of NaNs of all sorts."""


def same_bits(found: Any, wanted: Any) -> None:
    found = np.asarray(found)
    assert found.dtype == wanted.dtype == np.float32
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


def any_bits(rng: np.random.Generator, *shape: int) -> Any:
    """Return fp32 of random bits, of special ones, and plain ones."""
    kinds = rng.choice(3, shape, p=[0.3, 0.2, 0.5])
    bits = rng.integers(0, 2**32, shape, np.uint32)
    special = rng.choice(np.array(SPECIAL, np.uint32), shape)
    plain = rng.standard_normal(shape, np.float32).view(np.uint32)
    return np.choose(kinds, [bits, special, plain]).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("name", OPTIMIZERS)
@given(seed=st.integers(0, 2**32), dim=st.sampled_from(DIMS), count=st.integers(0, 40))
@settings(max_examples=60)
def test_update_has_the_bits_of_numpy(name, seed, dim, count):
    rng = np.random.default_rng(seed)
    optimizer, kind = OPTIMIZERS[name], OPTIMIZERS[name].kind
    weights = any_bits(rng, count, dim)
    state = any_bits(rng, count, optimizer.state_dim(dim))
    gradients = any_bits(rng, count, dim)
    rate = float(rng.choice([0.0, 1e-45, 0.01, 0.1, 3e38]))
    scalars = arithmetic.update_scalars(optimizer, int(rng.integers(1, 10_000)), rate, dim)
    given_torch = [torch.from_numpy(a.copy()) for a in (weights, state, gradients)]
    found = apply_update(kind, *given_torch, scalars)
    for array, tensor in zip((weights, state, gradients), given_torch, strict=True):
        same_bits(tensor, array)  # what was given is as it was
    arithmetic.apply_update(kind, weights, state, gradients, scalars)
    same_bits(found[0], weights)
    same_bits(found[1], state)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_many_rows_have_the_bits_of_numpy(name):
    """Enough of them that torch works with vectors, and with all of its threads."""
    rng = np.random.default_rng(3)
    optimizer, kind, count, dim = OPTIMIZERS[name], OPTIMIZERS[name].kind, 4000, 48
    weights = rng.standard_normal((count, dim), np.float32)
    state = rng.random((count, optimizer.state_dim(dim)), np.float32)
    for t in range(1, 6):
        g = rng.standard_normal((count, dim), np.float32) * np.float32(10.0 ** rng.integers(-30, 3))
        scalars = arithmetic.update_scalars(optimizer, t, 0.1, dim)
        new = apply_update(kind, *(torch.from_numpy(a) for a in (weights, state, g)), scalars)
        arithmetic.apply_update(kind, weights, state, g, scalars)
        same_bits(new[0], weights)
        same_bits(new[1], state)


@pytest.mark.parametrize("dim", range(1, 131))
def test_sum_over_dim_has_the_bits_of_numpy(dim):
    rng = np.random.default_rng(dim)
    values = any_bits(rng, 20, dim)
    values[np.isnan(values)] = 1.0  # the bits of a NaN in a sum are not defined
    values[:10] = rng.standard_normal((10, dim), np.float32)
    with np.errstate(all="ignore"):
        found = sum_over_dim(torch.from_numpy(values))[:, 0].numpy()
        wanted = arithmetic.sum_over_dim(values)
    is_number = ~np.isnan(wanted)
    same_bits(found[is_number], wanted[is_number])
    assert np.isnan(found[~is_number]).all()


ROWS = 200
DIMS_BY_KIND = {"sgd": 4, "adagrad": 9, "rowwise_adagrad": 40, "adam": 5, "ftrl": 6}
DIMS_BY_TABLE = {name: DIMS_BY_KIND[optimizer.kind] for name, optimizer in OPTIMIZERS.items()}
HOT = HotSet(dict.fromkeys(OPTIMIZERS, np.arange(0, ROWS, 2)))


def opened(path: Any) -> Any:
    """Open a store with a table of each optimizer."""
    store = embstore.open(path, cache_bytes=1 << 20, device="cpu")
    for name, optimizer in OPTIMIZERS.items():
        dim, initializer = DIMS_BY_TABLE[name], Uniform(-0.1, 0.1)
        store.create_table(name, dim=dim, rows=ROWS, optimizer=optimizer, initializer=initializer)
    return store


@pytest.fixture
def store(tmp_path: Any) -> Iterator[Any]:
    with opened(tmp_path) as store:
        yield store


def test_replica_trains_as_the_one_of_numpy(store):
    rng = np.random.default_rng(1)
    ours, numpys = TorchReplica(store, HOT), Replica(store, HOT)
    ours.pull()
    numpys.pull()
    for _ in range(20):
        shares = {}
        for name, hot in HOT.tables.items():
            keys = rng.choice(hot, int(rng.choice([0, 1, 40])))
            finite = any_bits(rng, len(keys), DIMS_BY_TABLE[name])
            finite[~(np.abs(finite) < 1e9)] = 0.5
            shares[name] = keys, finite
        tensors = {name: (keys, torch.from_numpy(g)) for name, (keys, g) in shares.items()}
        assert ours.update(tensors, gradient_scale=0.3) == numpys.update(shares, gradient_scale=0.3)
        wanted = numpys.lookup(HOT.tables)
        for name, rows in ours.lookup(HOT.tables).items():
            assert isinstance(rows, torch.Tensor)
            same_bits(rows, wanted[name])
    assert ours.unsent_bytes == numpys.unsent_bytes
    digests = []
    for replica in (ours, numpys):
        with store.session(tables=[*OPTIMIZERS]) as run:
            replica.push(run.member)
        digests.append([store.table(name).digest() for name in OPTIMIZERS])
        for name in OPTIMIZERS:  # both add 20 to t
            assert store.table(name).t in (20, 40)
    rows = [store.table(name).read_rows(HOT.tables[name]) for name in OPTIMIZERS]
    for name, (weights, _) in zip(OPTIMIZERS, rows, strict=True):
        same_bits(ours.lookup(HOT.tables)[name], weights)


def train(store: Any, replica: Any) -> list[str]:
    """Train half hot samples with autograd's gradients; return the tables' digests."""
    rng = np.random.default_rng(2)
    ids = rng.integers(0, ROWS, (400, 2))
    ids[::2] &= ~1
    chunk = {"a": ids[:, 0], "b": ids}
    columns = {"a": "adam", "b": "rowwise_adagrad"}
    kinds = set()
    with HotColdRun(store, HOT, columns, batch_size=16, replica=replica) as run:
        for step in run.steps([chunk]):
            rows = step.lookup()
            kinds.add(step.is_hot)
            if replica is Replica:
                gradients = {name: 2 * (r - np.float32(0.5)) for name, r in rows.items()}
            else:
                assert all(not r.requires_grad for r in rows.values())
                leaves = {name: r.requires_grad_() for name, r in rows.items()}
                sum(((r - 0.5) ** 2).sum() for r in leaves.values()).backward()
                gradients = {name: leaf.grad for name, leaf in leaves.items()}
            step.update(gradients)
    assert kinds == {True, False}
    return [store.table(name).digest() for name in columns.values()]


def test_run_with_tensors_trains_as_one_with_arrays(store, tmp_path):
    digests = [train(store, partial(TorchReplica, device="cpu"))]
    store.close()
    with opened(tmp_path / "other") as other:
        digests.append(train(other, Replica))
    assert digests[0] == digests[1]


def train_otherwise(store: Any, replica: Any) -> list[str]:
    """Train bags in every second step, and distinct keys in the others; return digests."""
    rng = np.random.default_rng(3)
    ids = rng.integers(0, ROWS, 400)
    ids[::2] &= ~1
    kinds = set()
    with HotColdRun(store, HOT, {"a": "adam"}, batch_size=16, replica=replica) as run:
        for place, step in enumerate(run.steps([{"a": ids}])):
            if is_pooled := place % 2:
                rows = step.lookup_pooled({"adam": [0, 3, 3, len(step.keys["adam"])]}, "mean")[
                    "adam"
                ]
            else:
                rows, _ = step.lookup_unique()["adam"]
            assert isinstance(rows, np.ndarray if replica is Replica else torch.Tensor)
            (step.update_pooled if is_pooled else step.update_unique)({"adam": 2 * rows})
            kinds.add((step.is_hot, is_pooled))
    assert len(kinds) == 4
    return [store.table("adam").digest()]


def test_bags_and_distinct_keys_may_be_tensors(store, tmp_path):
    digests = [train_otherwise(store, partial(TorchReplica, device="cpu"))]
    with opened(tmp_path / "other") as other:
        digests.append(train_otherwise(other, Replica))
    assert digests[0] == digests[1]


def test_other_devices_and_dtypes_are_refused(store):
    for device in ("meta", "no such device", "cuda:77", None):
        with pytest.raises(InvalidArgumentError, match="torch device"):
            TorchReplica(store, HOT, device=device)
    replica = TorchReplica(store, HOT)
    replica.pull()
    for dtype in (torch.float64, torch.bfloat16, torch.int32):
        with pytest.raises(InvalidArgumentError, match="dtype"):
            replica.update({"sgd": ([2], torch.ones((1, 4), dtype=dtype))})
    half = replica.update({"sgd": ([2], torch.ones((1, 4), dtype=torch.float16))})
    assert half.t["sgd"] == 1


def test_flushed_denormals_are_found(store):
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        with pytest.raises(DeviceError, match="denormals"):
            TorchReplica(store, HOT)
    finally:
        torch.set_flush_denormal(False)


def test_defaults_of_torch_do_not_matter(store):
    torch.set_default_dtype(torch.float64)
    try:
        replica = TorchReplica(store, HOT)
        replica.pull()
        replica.update({"rowwise_adagrad": ([2], torch.ones((1, 40), dtype=torch.float32))})
        rows = replica.lookup({"rowwise_adagrad": [2]})["rowwise_adagrad"]
    finally:
        torch.set_default_dtype(torch.float32)
    numpys = Replica(store, HOT)
    numpys.pull()
    numpys.update({"rowwise_adagrad": ([2], np.ones((1, 40), np.float32))})
    same_bits(rows, numpys.lookup({"rowwise_adagrad": [2]})["rowwise_adagrad"])
