"""Rule 1: a thread that flushes denormals to zero is found."""

import numpy as np
import pytest

import embstore
from embstore.arithmetic import (
    add_ranks,
    apply_update,
    bag_gradients,
    check_denormals,
    denormals,
    implementation,
    pool_rows,
    scale_sums,
    update_scalars,
)
from embstore.arithmetic.denormals import keeps_denormals
from embstore.config import Adagrad, Constant, Sgd
from embstore.errors import DeviceError
from tests.serving import Server, patient
from tests.unit.flushing import DENORMALS_ARE_ZERO, FLUSH_TO_ZERO, in_new_thread, needs_glibc


def test_a_new_thread_keeps_denormals():
    assert in_new_thread(check_denormals) is None


@needs_glibc
@pytest.mark.parametrize(
    "mxcsr_bits", [FLUSH_TO_ZERO, DENORMALS_ARE_ZERO, FLUSH_TO_ZERO | DENORMALS_ARE_ZERO]
)
def test_a_thread_that_flushes_is_found(mxcsr_bits):
    found = in_new_thread(check_denormals, mxcsr_bits)
    assert isinstance(found, DeviceError)
    assert "denormals" in str(found)
    check_denormals()


IDS = np.zeros(1, np.int32)
TINY = np.full((2, 2), 3, np.uint32).view(np.float32)  # denormals, as their sums are
BOTH = np.zeros(2, np.int32)
LARGER, TWICE = (np.full((2, 2), bits, np.uint32).view(np.float32) for bits in (6, 12))
HALVES = np.full(2, 0.5, np.float32)


def tiny_updated():
    weights, scalars = TINY.copy(), update_scalars(Sgd(1), 1, 1.0, 2)
    apply_update("sgd", weights, np.empty((2, 0), np.float32), -TINY, scalars)
    return weights


def tiny_updated_in_slots():
    weights, scalars = TINY.copy(), update_scalars(Sgd(1), 1, 1.0, 2)
    update_rows, state = implementation("compiled").update_rows, np.empty((2, 0), np.float32)
    update_rows("sgd", weights, state, np.arange(2), -TINY, scalars)
    return weights


CALLS = {
    "sum_by_key": lambda: implementation("numpy").sum_by_key(BOTH, 1, TINY),
    "compiled sum_by_key": lambda: implementation("compiled").sum_by_key(BOTH, 1, TINY),
    "pool_rows": lambda: pool_rows(TINY, np.array([0, 2])),
    "pool_rows of weighted rows": lambda: pool_rows(LARGER, np.array([0, 2]), weights=HALVES),
    "bag_gradients of means": lambda: bag_gradients(TWICE[:1], np.array([0, 2]), "mean"),
    "add_ranks": lambda: add_ranks(1, [(IDS, TINY[:1]), (IDS, TINY[:1])]),
    "apply_update": tiny_updated,
    "compiled update_rows": tiny_updated_in_slots,
}


@pytest.fixture(params=CALLS)
def call(request):
    if "compiled" in request.param:
        pytest.importorskip("numba")
    CALLS[request.param]()  # compiles, if it must, in a thread that is as usual
    return CALLS[request.param]


@needs_glibc
@pytest.mark.parametrize("mxcsr_bits", [FLUSH_TO_ZERO, DENORMALS_ARE_ZERO])
def test_what_computes_keeps_denormals_in_a_thread_that_flushes_them(call, mxcsr_bits):
    found = in_new_thread(call, mxcsr_bits)
    assert (found.view(np.uint32) == 6).all()


@needs_glibc
def test_the_thread_flushes_again_afterwards(call):
    def and_look():
        call()
        return keeps_denormals()

    assert in_new_thread(and_look, FLUSH_TO_ZERO) is False


@needs_glibc
def test_where_a_thread_cannot_be_told_it_is_refused(call, monkeypatch):
    monkeypatch.setattr(denormals, "_libm", lambda: None)
    assert isinstance(in_new_thread(call, FLUSH_TO_ZERO), DeviceError)


def lived(folder, durability="checkpoint"):
    """Do what computes, on numbers that come out small; return the bits of it."""
    with embstore.open(folder, cache_bytes=1 << 20, durability=durability, threads=1) as store:
        keys = np.array([1, 2, 1])
        tables = {}
        for name, optimizer, value in (
            ("sgd", Sgd(1.0), 1e-40),
            ("rate", Sgd(1e-39), 0.0),
            ("accumulated", Adagrad(1.0, epsilon=1e-8, initial_accumulator=1e-40), 0.0),
        ):
            tables[name] = store.create_table(
                name, dim=4, rows=10, optimizer=optimizer, initializer=Constant(value)
            )
        small, ones = np.full((3, 4), 1e-34, np.float32), np.ones((3, 4), np.float32)
        store.update_ranks([{"sgd": (keys, small)}, {"sgd": (keys, small)}], gradient_scale=2**-16)
        tables["sgd"].update(keys, ones, gradient_scale=1e-39)
        tables["rate"].update(keys, ones)
        tables["rate"].update(keys, ones, learning_rate=1e-40)
        tables["accumulated"].update(keys, small, gradient_scale=2**-16)
        pooled = tables["sgd"].lookup_pooled(keys, [0, 3], "mean")
        found = [table.digest() for table in tables.values()]
        return [*found, pooled.tobytes(), scale_sums(small, 2**-16).tobytes()]


@needs_glibc
@pytest.mark.parametrize("durability", ["checkpoint", "commands"])
def test_a_life_in_a_thread_that_flushes_is_that_of_any_other(durability, tmp_path):
    pytest.importorskip("numba")
    expected = lived(tmp_path / "usual", durability)
    flushing = FLUSH_TO_ZERO | DENORMALS_ARE_ZERO
    assert in_new_thread(lambda: lived(tmp_path / "flushing", durability), flushing) == expected


@needs_glibc
def test_a_client_in_a_thread_that_flushes_sends_what_any_other_does(tmp_path):
    pytest.importorskip("numba")
    keys, tiny = np.zeros(3, np.int64), np.full((3, 2), 5, np.uint32).view(np.float32)

    def opened():
        return embstore.open(tmp_path / "served", cache_bytes=1 << 20)

    with Server(opened, tmp_path / "served") as server, patient(server.address) as store:
        table = store.create_table(
            "a", dim=2, rows=9, optimizer=Sgd(1.0), initializer=Constant(0.0)
        )
        done = in_new_thread(lambda: table.update(keys, -tiny), FLUSH_TO_ZERO | DENORMALS_ARE_ZERO)
        assert done.t == 1
        assert (table.lookup(keys).view(np.uint32) == 15).all()
