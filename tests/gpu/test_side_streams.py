"""Keys, gradients and outputs that torch uses in a stream of its own, while the store reads them;
and in one that it captures.

Each is written behind a delay of that stream: a store that does not wait for it reads what was
there before.
"""

import contextlib

import numpy as np
import pytest

from embstore.config import RowWiseAdagrad, Uniform
from embstore.errors import InvalidArgumentError

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

ROWS, DIM, KEYS = 100_000, 64, 200_000
DELAY_CYCLES = 50_000_000
"""Some 30 ms, in which the host gets far beyond the call."""


@pytest.fixture
def store(backend):
    opened = backend.open_store(cache_bytes=256 << 20)
    for name in ("host", "device"):
        opened.create_table(
            name,
            dim=DIM,
            rows=ROWS,
            optimizer=RowWiseAdagrad(0.1),
            initializer=Uniform(-1.0, 1.0),
            seed=5,
        )
    return opened


def assert_same_rows(one, other):
    """Compare all rows of two tables, whose digests differ as their names do."""
    keys = np.arange(ROWS)
    assert np.array_equal(one.lookup(keys), other.lookup(keys))


def late(array):
    """Return a tensor that gets an array's elements behind a delay of the current stream."""
    source = torch.from_numpy(array).cuda()
    torch.cuda.current_stream().synchronize()
    found = torch.zeros_like(source)
    torch.cuda._sleep(DELAY_CYCLES)
    found.copy_(source)
    return found


def test_a_side_stream_is_waited_for(store):
    rng = np.random.default_rng(11)
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
            device.update(late(keys), late(grads))
        assert np.array_equal(found, wanted)
    assert_same_rows(host, device)


def test_a_call_within_a_capture_is_refused_and_does_no_harm(store):
    """The graph may be lost to whoever captures it; the store is not."""
    host, device = store.table("host"), store.table("device")
    keys = torch.arange(KEYS, device="cuda") % ROWS
    out, grads = (torch.empty((KEYS, DIM), device="cuda") for _ in range(2))
    grads.fill_(0.5)
    device.lookup(keys, out=out)
    wanted = out.cpu()
    calls = {
        "lookup": lambda: device.lookup(keys, out=out),
        "update": lambda: device.update(keys, grads),
    }
    for call in calls.values():
        with contextlib.suppress(RuntimeError):  # torch's, at the end of the capture
            with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
                with pytest.raises(InvalidArgumentError, match="capture"):
                    call()
        torch.cuda.synchronize()
        device.lookup(keys, out=out)
        assert torch.equal(out.cpu(), wanted)
    device.update(keys, grads)
    host.update(keys.cpu().numpy(), grads.cpu().numpy())
    assert_same_rows(host, device)
