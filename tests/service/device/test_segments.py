"""A GPU's memory that is shared: whose it is, when it is freed, and what happens when either side
goes away.

Every test ends with a look that nothing is lent, and nothing was freed while it was open.
"""

import gc
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import numpy as np
import pytest
from grpc import StatusCode

from embstore.errors import DeadlineError, OutcomeUnknownError, StoreClosedError
from embstore_client import device_calls
from embstore_client.shared_memory import RESULTS_MAX
from embstore_client.wire import WireError
from embstore_server.transports.rest.stats import process_stats
from tests.service.device.samples import (
    DIM,
    NOTHING_LENT,
    PATIENCE_S,
    ROWS,
    SEGMENT_BYTES,
    WIDE,
    GpuServer,
    Lent,
    batch,
    lookup_of,
    rng,
)
from tests.service.faults.losing import needs_compiler
from tests.service.faults.served import on_loop_call, until
from tests.serving import patient

pytestmark = needs_compiler


def test_rows_that_are_kept_stay_as_they_are_while_calls_go_on(server, trainer):
    device, keys = trainer.table("wide"), np.arange(100)
    ones = trainer.array(np.ones((100, WIDE), np.float32))
    kept, expected = [], []
    for _ in range(5):
        expected.append(trainer.table("wide").lookup(keys))
        kept.append(device.lookup(trainer.array(keys)))
        device.update(trainer.array(keys), ones)
        device.lookup(trainer.array(np.arange(ROWS)))
        for rows, as_it_was in zip(kept, expected, strict=True):
            assert np.array_equal(rows.content(), as_it_was)


def test_results_above_the_most_are_copied(server, trainer):
    device, keys = trainer.table("wide"), np.arange(100)
    expected = device.lookup(keys)
    kept = [device.lookup(trainer.array(keys)) for _ in range(RESULTS_MAX + 3)]
    assert Lent.of(server)[0] <= (RESULTS_MAX + 1) * SEGMENT_BYTES
    assert all(np.array_equal(rows.content(), expected) for rows in kept)


def test_a_connection_is_used_again_when_its_rows_are_dropped(server, trainer, gpu):
    device, keys = trainer.table("wide"), trainer.array(np.arange(100))
    for _ in range(20):
        device.lookup(keys)
    assert gpu.opened == 1
    assert Lent.of(server) == (SEGMENT_BYTES, SEGMENT_BYTES, SEGMENT_BYTES)
    stats = on_loop_call(process_stats, server.service, None)["transports"]["shared_memory"]
    assert (stats["device_segment_bytes"], stats["segment_bytes"]) == (SEGMENT_BYTES, 0)


def test_calls_with_and_without_arrays_there_take_connections_of_their_own(server, trainer, gpu):
    """A loop and the thread that reads its batches call by turns; one segment is enough."""
    wide, keys = trainer.table("wide"), np.arange(100)
    rows = wide.lookup(trainer.array(keys))
    kept = wide.lookup(keys)  # by another connection, since the first one is lent
    assert np.array_equal(rows.content(), kept)
    del rows
    del kept  # the one without a segment was used last
    for _ in range(3):
        wide.lookup(trainer.array(keys))
        wide.lookup(keys)
    assert gpu.opened == 1 and server.traffic.connections == 2


def test_segments_grow_and_those_before_are_closed_and_freed(server, trainer, gpu):
    random = rng()
    for count in (10, 20_000, 50_000, 100):
        keys, _ = batch(random, count, WIDE)
        expected = trainer.table("wide").lookup(keys)
        found = trainer.table("wide").lookup(trainer.array(keys))
        assert np.array_equal(found.content(), expected)
        del found
    assert gpu.opened == 3
    until(lambda: len(set(Lent.of(server))) == 1, PATIENCE_S)


def test_a_reply_that_needs_a_larger_segment_brings_it(server, trainer, gpu, monkeypatch):
    """As where a table has become wider than the client has seen it."""
    monkeypatch.setattr(device_calls, "_room_for", lambda _: 0)
    keys, _ = batch(rng(), 20_000, WIDE)
    expected = trainer.table("wide").lookup(keys)
    assert np.array_equal(trainer.table("wide").lookup(trainer.array(keys)).content(), expected)
    assert gpu.opened == 2
    out = trainer.out(20_000, WIDE)
    trainer.table("wide").lookup(trainer.array(keys), out=out)
    assert np.array_equal(out.content(), expected)


def test_rows_outlive_a_connection_that_was_idle(server, trainer):
    keys = np.arange(100)
    expected = trainer.table("wide").lookup(keys)
    rows = trainer.table("wide").lookup(trainer.array(keys))
    on_loop_call(end_idle, server)
    until(lambda: server.traffic.connections == 0, PATIENCE_S)
    again = trainer.table("wide").lookup(trainer.array(keys))
    trainer.table("wide").update(keys, np.ones((100, WIDE), np.float32))
    for kept in (rows, again):
        assert np.array_equal(kept.content(), expected)


def end_idle(server: GpuServer) -> None:
    """End all connections, as where they are idle."""
    for connection in tuple(server.sharing._connections):
        connection.close()


def test_rows_outlive_their_client(server, trainer):
    """And their segment with them: it is not freed under a reader, whose connection has ended."""
    keys = np.arange(100)
    expected = trainer.table("wide").lookup(keys)
    rows = trainer.table("wide").lookup(trainer.array(keys))
    trainer.store.close()
    until(lambda: server.traffic.connections == 0, PATIENCE_S)
    assert Lent.of(server) == (SEGMENT_BYTES, SEGMENT_BYTES, SEGMENT_BYTES)
    with patient(f"unix:{server.socket}") as other:
        other.update({"wide": (keys, np.ones((100, WIDE), np.float32))})
    assert np.array_equal(rows.content(), expected)
    del rows
    gc.collect()
    until(lambda: Lent.of(server) == NOTHING_LENT, PATIENCE_S)


def test_a_client_that_finds_the_shared_memory_itself_waits_for_it_when_it_is_lost(server, trainer):
    """Arrays of a GPU are not sent over the network in the meantime, nor refused for it."""
    keys = np.arange(100)
    with patient(server.address, transport="auto") as store:
        expected = store.lookup({"narrow": keys})["narrow"]
        found = store.lookup({"narrow": trainer.array(keys)})["narrow"]
        assert np.array_equal(found.content(), expected)
        del found
        wire = store.executor.transport.wire  # type: ignore[attr-defined]
        wire._note(wire._shared, WireError(StatusCode.UNAVAILABLE, "lost"))
        wire._looked = monotonic()
        before = server.service.traffic["grpc"].calls
        found = store.lookup({"narrow": trainer.array(keys)})["narrow"]
        assert np.array_equal(found.content(), expected)
        assert wire.shares_memory
        assert server.service.traffic["grpc"].calls <= before + 2  # to look for the socket
        del found


def test_a_client_that_goes_away_in_the_middle_frees_its_segment(server, trainer, gpu):
    device, keys = trainer.table("narrow"), np.arange(100)
    device.lookup(trainer.array(keys))
    with ThreadPoolExecutor(1) as background, server.held():
        grads = np.ones((100, DIM), np.float32)
        call = background.submit(device.update, trainer.array(keys), trainer.array(grads))
        server.await_queue(1)
        trainer.store.close()
        with pytest.raises(OutcomeUnknownError):
            call.result(PATIENCE_S)
        until(lambda: server.traffic.connections == 0, PATIENCE_S)
        del call
        gc.collect()
        until(lambda: not gpu.open_segments, PATIENCE_S)
    until(lambda: Lent.of(server) == NOTHING_LENT, PATIENCE_S)
    with patient(f"unix:{server.socket}") as other:
        other.lookup({"narrow": keys})


def test_a_trainer_whose_gpu_hangs_keeps_nobody_else(server, trainer, gpu):
    """Its event is never reached; the engine, and the others' work, do not wait for it."""
    gpu.looks = 1 << 60
    device, keys = trainer.table("narrow"), np.arange(100)
    with pytest.raises(DeadlineError):
        trainer.store.executor.execute(lookup_of(trainer, keys), timeout_s=0.3)
    with ThreadPoolExecutor(1) as background:
        call = background.submit(device.lookup, trainer.array(keys))
        with patient(f"unix:{server.socket}") as other:
            for _ in range(3):
                other.update({"narrow": (keys, np.ones((100, DIM), np.float32))})
        assert not call.done()
        trainer.store.close()
        with pytest.raises(StoreClosedError):
            call.result(PATIENCE_S)
        del call


def test_a_server_that_goes_away_leaves_calls_to_the_next_one(tmp_path, server, trainer, gpu):
    device, keys = trainer.table("narrow"), np.arange(100)
    expected = device.lookup(keys)
    device.lookup(trainer.array(keys))
    server.stop()
    with pytest.raises((StoreClosedError, DeadlineError)):
        trainer.store.executor.execute(lookup_of(trainer, keys), timeout_s=0.3)
    gc.collect()
    until(lambda: not gpu.open_segments, PATIENCE_S)
    with GpuServer(tmp_path / "store", socket=server.socket) as again:
        with patient(f"unix:{again.socket}") as store:
            rows = store.lookup({"narrow": trainer.array(keys)})["narrow"]
            assert np.array_equal(rows.content(), expected)
            del rows
