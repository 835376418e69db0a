"""A trainer and its server on one GPU, as two real processes: what `tests/service/device` shows of
the emulated one, and what only CUDA can say of its handles and events."""

import contextlib
import gc
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import numpy as np
import pytest

from embstore.config import RowWiseAdagrad, Uniform
from embstore.device.runtime import EXPORTED_MULTIPLE_BYTES
from embstore.errors import EmbstoreError
from embstore_client import connect
from tests import installed

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
ROWS, DIM, KEYS = 100_000, 64, 50_000
PATIENCE_S = 60.0


def until(condition):
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"


@contextlib.contextmanager
def served(path):
    """Yield a server process on the first device."""
    from embstore_server.setup.launch import ServerProcess

    options = ("--device", "cuda:0", "--cache-bytes", str(256 << 20), "--socket", str(path / "s"))
    with ServerProcess(path / "store", *options) as server:
        with connect(server.address) as store:
            for name in ("host", "device"):
                store.create_table(
                    name, dim=DIM, rows=ROWS, optimizer=RowWiseAdagrad(0.1),
                    initializer=Uniform(-1.0, 1.0), seed=5,
                )  # fmt: skip
        yield server


@pytest.fixture
def server(gpu, tmp_path) -> Iterator:
    absent = installed.lacking(installed.SERVER)
    if absent is not None:
        pytest.skip(absent)
    with served(tmp_path) as made:
        yield made


@pytest.fixture
def store(server, tmp_path):
    with connect(f"unix:{tmp_path / 's'}", timeout_s=PATIENCE_S) as made:
        yield made


def segment_bytes(server):
    """Return the bytes of the GPU that a server shares."""
    url = f"http://{server.admin}/api/v1/stats"
    opener = build_opener(ProxyHandler({}))
    with opener.open(url, timeout=PATIENCE_S) as reply:
        return json.load(reply)["transports"]["shared_memory"]["device_segment_bytes"]


def test_lookups_and_updates_give_the_bits_of_arrays_of_the_host(store):
    import cupy

    rng = np.random.default_rng(11)
    host, device = store.table("host"), store.table("device")
    for _ in range(4):
        keys = rng.integers(0, ROWS, KEYS)
        grads = rng.standard_normal((KEYS, DIM)).astype(np.float32)
        expected = host.lookup(keys)
        d_keys, out = cupy.asarray(keys), cupy.empty((KEYS, DIM), cupy.float32)
        lent = device.lookup(d_keys)
        assert device.lookup(d_keys, out=out) is out
        assert np.array_equal(lent.get(), expected) and np.array_equal(out.get(), expected)
        host.update(keys, grads)
        device.update(d_keys, cupy.asarray(grads))
        del lent
    offsets = np.arange(0, KEYS + 1, 10)
    pooled = device.lookup_pooled(d_keys, offsets, "mean").get()
    assert np.array_equal(pooled, host.lookup_pooled(keys, offsets, "mean"))
    assert np.array_equal(host.lookup(np.arange(ROWS)), device.lookup(np.arange(ROWS)))


def test_steps_give_the_bits_of_arrays_of_the_host(store):
    """Rows of occurrences, and sums of their gradients; a stream that works behind Python reads
    lent rows before they are written over."""
    import cupy

    from tests.gpu.test_side_streams import DELAY_CYCLES

    torch = pytest.importorskip("torch")
    batches = [np.random.default_rng(n).integers(0, ROWS, KEYS) for n in range(6)]

    def trained(name, as_keys, rows_are):
        seen = []
        with store.session([name], rows="auto") as run:
            for step in run.steps(batches, lambda batch: {name: as_keys(batch)}):
                rows = step.lookup()[name]
                assert isinstance(rows, rows_are)
                torch.cuda._sleep(DELAY_CYCLES)  # in the legacy stream, which is CuPy's too
                seen.append(rows.copy())
                if step.number % 2:
                    step.update({name: seen[-1] * np.float32(0.1)})
                del rows
                if not step.is_finished:
                    step.release()
        return [of if rows_are is np.ndarray else of.get() for of in seen]

    for a, b in zip(
        trained("host", np.asarray, np.ndarray),
        trained("device", cupy.asarray, cupy.ndarray),
        strict=True,
    ):
        assert np.array_equal(a, b)
    assert np.array_equal(
        store.table("host").lookup(np.arange(ROWS)), store.table("device").lookup(np.arange(ROWS))
    )


def test_a_side_stream_of_torch_is_waited_for(store):
    """Its arrays are written behind a delay: the event is reached when the copies are there."""
    torch = pytest.importorskip("torch")
    from tests.gpu.test_side_streams import DELAY_CYCLES, late

    rng = np.random.default_rng(12)
    host, device = store.table("host"), store.table("device")

    for _ in range(3):
        keys = rng.integers(0, ROWS, KEYS)
        grads = rng.standard_normal((KEYS, DIM)).astype(np.float32)
        wanted = host.lookup(keys)
        host.update(keys, grads)
        with torch.cuda.stream(torch.cuda.Stream()):
            out = torch.full((KEYS, DIM), 7.0, device="cuda")
            torch.cuda._sleep(DELAY_CYCLES)
            out.fill_(8.0)  # before the lookup's rows, not over them
            device.lookup(late(keys), out=out)
            found = out.cpu().numpy()
            lent = torch.from_dlpack(device.lookup(late(keys)))
            assert np.array_equal(lent.cpu().numpy(), wanted)
            del lent
            device.update(late(keys), late(grads))
        assert np.array_equal(found, wanted)
    assert np.array_equal(host.lookup(np.arange(ROWS)), device.lookup(np.arange(ROWS)))


TRAINER = """
import sys
import cupy
from embstore_client import connect
from tests import installed

with connect(sys.argv[1]) as store:
    table = store.table("device")
    keys = cupy.arange(50_000)
    kept = table.lookup(keys)
    print("has rows", flush=True)
    while True:
        table.update(keys, cupy.zeros((50_000, 64), cupy.float32))
"""


def test_a_trainer_that_is_killed_leaves_nothing(server, store, tmp_path):
    """Its segments are freed, and the others' calls go on."""
    import cupy

    command = [sys.executable, "-c", TRAINER, f"unix:{tmp_path / 's'}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as trainer:
        try:
            assert trainer.stdout.readline() == "has rows\n"
            until(lambda: segment_bytes(server) > 0)
        finally:
            trainer.send_signal(signal.SIGKILL)
    until(lambda: segment_bytes(server) == 0)
    keys = np.arange(KEYS)
    found = store.table("device").lookup(cupy.asarray(keys))
    assert np.array_equal(found.get(), store.table("host").lookup(keys))


def test_a_server_that_is_killed_leaves_a_trainer_that_goes_on(server, store):
    """What it was lent is void; its own memory is not, and it ends in order."""
    import cupy

    own = cupy.arange(KEYS)
    lent = store.table("device").lookup(own)
    server.kill()
    with pytest.raises(EmbstoreError):
        store.executor.execute(_lookup(own), timeout_s=1.0)
    del lent
    gc.collect()
    store.close()
    assert int(own.sum()) == KEYS * (KEYS - 1) // 2
    cupy.cuda.Device(0).synchronize()


def _lookup(keys):
    from embstore import commands as c

    return c.Lookup((c.TableKeys("device", None, keys),))


def test_rows_outlive_their_connection(store, server):
    import cupy

    keys = np.arange(KEYS)
    expected = store.table("host").lookup(keys)
    lent = store.table("device").lookup(cupy.asarray(keys))
    store.close()
    assert segment_bytes(server) > 0
    assert np.array_equal(lent.get(), expected)
    del lent
    gc.collect()
    until(lambda: segment_bytes(server) == 0)


OPENER = """
import sys
import cupy
from cupy.cuda import runtime as cuda

memory, event = (bytes.fromhex(text) for text in sys.argv[1:3])
with cupy.cuda.Device(cuda.deviceGetByPCIBusId(sys.argv[3])):
    address = cuda.ipcOpenMemHandle(memory)
    opened = cuda.ipcOpenEventHandle(event)
    stream = cupy.cuda.Stream(non_blocking=True)
    cuda.memsetAsync(address, 0x5A, int(sys.argv[4]), stream.ptr)
    cuda.eventRecord(opened, stream.ptr)
    print("recorded", flush=True)
    sys.stdin.readline()
    stream.synchronize()
    cuda.eventDestroy(opened)
    cuda.ipcCloseMemHandle(address)
"""


def test_another_process_writes_what_is_exported_and_records_the_event(runtime):
    size = 16 * EXPORTED_MULTIPLE_BYTES
    array = runtime.allocate(size, np.uint8)
    runtime.fill(array, 0)
    runtime.wait(runtime.mark(0))
    exported = runtime.export(array)
    assert (len(exported.memory), len(exported.event_handle)) == (64, 64)
    assert runtime.is_reached(exported.event)  # never recorded
    words = [exported.memory.hex(), exported.event_handle.hex(), exported.gpu, str(size)]
    with subprocess.Popen(
        [sys.executable, "-c", OPENER, *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as opener:  # fmt: skip
        assert opener.stdout.readline() == "recorded\n"
        until(lambda: runtime.is_reached(exported.event))
        out = np.zeros(size, np.uint8)
        runtime.download(array, out)
        runtime.wait(runtime.mark(0))
        assert (out == 0x5A).all()
        opener.communicate("\n")
        assert opener.returncode == 0
    assert not runtime.is_lost
