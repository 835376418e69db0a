"""Arrays in a GPU's memory through memory of the GPU that is shared, with two processes' worth of
state: the server's emulated GPU, and the client's.

Rows and digests are those of the same calls with arrays of the host, whatever the client does to
its segment meanwhile; and no row passes through the host.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.errors import InvalidArgumentError
from tests.copies import copy_of_open
from tests.service.device.samples import (
    COUNT,
    DIM,
    ROWS,
    WIDE,
    Changes,
    assert_same,
    batch,
    rng,
    wire_of,
)
from tests.service.faults.losing import needs_compiler

pytestmark = needs_compiler

FEW_ROWS = 20_000
"""Bytes of a cache that has to read and evict rows in every call."""
WILD_SHARE = 0.002


@pytest.mark.parametrize("names_stream", [True, False], ids=["its stream", "by DLPack"])
@pytest.mark.parametrize("settings", [{}, {"cache_bytes": FEW_ROWS}], indirect=True)
def test_lookups_and_updates_give_the_rows_of_arrays_of_the_host(server, trainer, names_stream):
    random, how = rng(), {"names_stream": names_stream}
    host, device = trainer.table("narrow"), trainer.table("narrow-2")
    for _ in range(4):
        keys, grads = batch(random, COUNT, DIM)
        expected = host.lookup(keys)
        d_keys = trainer.array(keys, **how)
        assert np.array_equal(device.lookup(d_keys).content(), expected)
        out = trainer.out(COUNT, DIM, **how)
        assert device.lookup(d_keys, out=out) is out
        assert np.array_equal(out.content(), expected)
        host.update(keys, grads)
        device.update(d_keys, trainer.array(grads, **how))
    assert_same(server, ("narrow", "narrow-2"))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_give_the_same_bits(server, trainer, mode):
    random, offsets = rng(), np.array([0, 3, 3, 170, COUNT])
    host, device = trainer.table("wide"), trainer.table("wide-2")
    for _ in range(3):
        keys, _ = batch(random, COUNT, WIDE)
        grads = random.standard_normal((4, WIDE)).astype(np.float32)
        expected = host.lookup_pooled(keys, offsets, mode)
        d_keys, out = trainer.array(keys), trainer.out(4, WIDE)
        assert np.array_equal(device.lookup_pooled(d_keys, offsets, mode).content(), expected)
        assert device.lookup_pooled(d_keys, offsets, mode, out=out) is out
        assert np.array_equal(out.content(), expected)
        host.update_pooled(keys, offsets, grads, mode)
        device.update_pooled(d_keys, offsets, trainer.array(grads), mode)
    assert_same(server, ("wide", "wide-2"))


def test_tables_of_several_pools_in_one_call_give_the_same_bits(server, trainer):
    random, store = rng(), trainer.store
    for _ in range(3):
        (k1, g1), (k2, g2) = batch(random, COUNT, DIM), batch(random, 2 * COUNT, WIDE)
        expected = store.lookup({"narrow": k1, "wide": k2})
        d_k1, d_k2 = trainer.array(k1), trainer.array(k2)
        found = store.lookup({"narrow-2": d_k1, "wide-2": d_k2})
        assert np.array_equal(found["narrow-2"].content(), expected["narrow"])
        assert np.array_equal(found["wide-2"].content(), expected["wide"])
        outs = {"narrow-2": trainer.out(COUNT, DIM), "wide-2": trainer.out(2 * COUNT, WIDE)}
        found = store.lookup({"narrow-2": k1, "wide-2": d_k2}, out=outs)  # keys of both kinds
        assert found["narrow-2"] is outs["narrow-2"]
        for name, other in (("narrow", "narrow-2"), ("wide", "wide-2")):
            assert np.array_equal(outs[other].content(), expected[name])
        store.update({"narrow": (k1, g1), "wide": (k2, g2)})
        store.update({"narrow-2": (d_k1, g1), "wide-2": (d_k2, trainer.array(g2))})
    assert_same(server, ("narrow", "narrow-2"), ("wide", "wide-2"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_gradients_of_steps_give_the_same_bits(server, trainer, ranks):
    random, sessions = rng(), trainer.store.sessions
    sessions.open("s", ["narrow", "narrow-2"], world_size=ranks)
    members = [sessions.join("s", rank).member for rank in range(ranks)]
    for step in (1, 2, 3):
        for member in members:
            keys = random.permutation(ROWS)[:50]
            sessions.announce(member, {step: {"narrow": keys, "narrow-2": keys}})
        sent = []
        with ThreadPoolExecutor(ranks) as pool:
            for member in members:
                sessions.lookup_step(member, step)
                own = random.standard_normal((50, DIM)).astype(np.float32)
                given = {"narrow": own, "narrow-2": trainer.array(own)}
                sent.append(pool.submit(sessions.update_step, member, step, given))
        assert [done.result().skipped for done in sent] == [False] * ranks
    assert_same(server, ("narrow", "narrow-2"))
    for member in members:
        sessions.close(member)


@pytest.mark.parametrize("settings", [{"durability": "commands"}], indirect=True)
def test_an_update_is_logged_as_it_was_applied_whatever_the_segment_has_by_then(
    server, trainer, gpu, tmp_path
):
    """The segment changes at any moment of the server's device: keys that are right, gradients."""
    random, device = rng(), trainer.table("narrow")
    keys, grads = batch(random, COUNT, DIM)
    d_keys, d_grads = trainer.array(keys), trainer.array(grads)
    device.update(d_keys, d_grads)
    changes = server.runtime.changes = Changes(gpu, lambda: batch(random, COUNT, DIM))
    for _ in range(5):
        device.update(d_keys, d_grads)
    server.runtime.changes = None
    assert changes.count > 20
    digest, copy = device.digest(), tmp_path / "copy"
    server.on_engine(lambda _: copy_of_open(tmp_path / "store", copy))
    with embstore.open(copy, device="cpu", cache_bytes=1 << 20, threads=1) as store:
        assert store.table("narrow").digest() == digest


def test_keys_that_change_during_a_call_reach_no_row_of_another(server, trainer, gpu):
    """Numbers of any size stand in their place; the emulated GPU ends at an access out of bounds.

    A call is refused then, or does what one of the keys' states would have done.
    """
    random, device = rng(), trainer.table("narrow")
    keys, grads = batch(random, COUNT, DIM)
    d_keys, d_grads = trainer.array(keys), trainer.array(grads)
    device.lookup(d_keys)

    def any_keys() -> tuple[Any, Any]:
        wild = random.integers(-(2**62), 2**62, COUNT)
        is_wild = random.random(COUNT) < WILD_SHARE
        return np.where(is_wild, wild, keys), batch(random, COUNT, DIM)[1]

    changes = server.runtime.changes = Changes(gpu, any_keys)
    refused = 0
    for n in range(30):
        try:
            if n % 2:
                device.update(d_keys, d_grads)
            else:
                device.lookup(d_keys)
        except InvalidArgumentError:
            refused += 1
    server.runtime.changes = None
    assert changes.count > 100 and 0 < refused < 30
    assert np.array_equal(device.lookup(d_keys).content(), device.lookup(keys))
    server.on_engine(lambda store: store.check_integrity())


def test_an_empty_call_is_answered_as_ever(server, trainer):
    device = trainer.table("narrow")
    before = device.t
    none = np.empty(0, np.int64), np.empty((0, DIM), np.float32)
    host = trainer.table("narrow-2").update(*none)
    done = device.update(*map(trainer.array, none))
    assert (done.t, done.skipped) == (host.t, host.skipped) == (before + 1, False)
    assert device.lookup(trainer.array(none[0])).shape == (0, DIM)


def test_refused_gradients_and_keys_are_named_and_change_nothing(server, trainer):
    device = trainer.table("narrow")
    keys, grads = batch(rng(), COUNT, DIM)
    grads[17, 3] = np.inf
    with pytest.raises(InvalidArgumentError, match=f"finite gradients.*key {keys[17]}"):
        device.update(trainer.array(keys), trainer.array(grads))
    keys[5] = ROWS
    for out in (None, trainer.out(COUNT, DIM)):
        with pytest.raises(InvalidArgumentError, match=f"found {ROWS}"):
            device.lookup(trainer.array(keys), out=out)
    assert_same(server, ("narrow", "narrow-2"))


# Nothing through the host


def test_no_row_key_or_gradient_passes_through_the_host(server, trainer, gpu):
    """What goes up and down is sizes, addresses and findings: no more for more keys."""
    device = trainer.table("wide")
    all_keys = np.arange(ROWS)
    device.lookup(all_keys)  # resident
    of_host, moved = server.traffic.segment_bytes, []
    for count in (64, ROWS):
        keys, grads = trainer.array(all_keys[:count]), trainer.array(np.ones((count, WIDE), "<f4"))
        out = trainer.out(count, WIDE)
        device.lookup(keys, out=out)
        device.update(keys, grads)
        runtimes = server.runtime, gpu.runtime
        before = [(r.uploaded_bytes, r.downloaded_bytes) for r in runtimes]
        device.lookup(keys, out=out)
        lent = device.lookup(keys)
        device.update(keys, grads)
        after = [(r.uploaded_bytes, r.downloaded_bytes) for r in runtimes]
        moved.append([a[n] - b[n] for a, b in zip(after, before, strict=True) for n in (0, 1)])
        assert np.array_equal(lent.content(), out.content())
    assert moved[0] == moved[1]
    assert max(moved[1]) < 8 * ROWS
    assert server.traffic.copies.bytes == wire_of(trainer).copies.bytes == 0
    assert server.traffic.segment_bytes == of_host
