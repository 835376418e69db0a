"""Modules of Torch on the GPU that the store is on, here or in a server: to the bits of a program
in NumPy that is given the same gradients; and Torch waits for nothing between batch and step."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from embstore_client import connect  # noqa: E402
from tests import installed  # noqa: E402
from tests.frameworks.gpu_training import back, bags_of, collection, features, ids_of, moved  # noqa: E402
from tests.frameworks.numpy_twin import Forward, Twin, kept  # noqa: E402
from tests.gpu.test_shared_memory_on_gpu import PATIENCE_S, served  # noqa: E402

pytestmark = pytest.mark.gpu

STEPS = 8


@pytest.fixture(params=["in process", "in another process"])
def module(request: pytest.FixtureRequest, backend: Any, tmp_path: Path) -> Iterator[Any]:
    if request.param == "in process":
        yield collection(backend.open_store(cache_bytes=64 << 20))
        return
    absent = installed.lacking(installed.SERVER)
    if absent is not None:
        pytest.skip(absent)
    with served(tmp_path), connect(f"unix:{tmp_path / 's'}", timeout_s=PATIENCE_S) as store:
        yield collection(store)


@pytest.fixture
def no_waits() -> Iterator[Any]:
    """Have Torch raise where it waits for the GPU, between two calls."""
    yield torch.cuda.set_sync_debug_mode
    torch.cuda.set_sync_debug_mode("default")


def batches() -> list[Any]:
    rng = np.random.default_rng(3)
    return [features(rng) for _ in range(STEPS)]


def there(batch: Any) -> Any:
    return moved(batch, lambda array: torch.from_numpy(array).cuda())


def forward_of(batch: Any, outputs: Any) -> Forward:
    """Return what a twin is told of a forward."""
    given = {}
    for name, of in batch.items():
        ids, offsets, weights = (*of, None)[:3] if isinstance(of, tuple) else (of, None, None)
        bounds = None if offsets is None else np.append(offsets, len(ids))
        given[name] = ids, bounds, weights
    return Forward(given, {name: of.grad.cpu().numpy() for name, of in outputs.items()})


@pytest.mark.parametrize("is_side_stream", [False, True])
def test_a_loop_leaves_the_gpu_for_nothing(module, no_waits, is_side_stream):
    twin, all_read = Twin(module), threading.Event()

    def loader() -> Iterator[Any]:
        for batch in batches():
            yield batch, there(batch)
        all_read.set()  # it is asked once more when the last one is prepared

    stream = torch.cuda.Stream() if is_side_stream else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        loop = module.ahead(loader(), features=lambda batch: batch[1], lookahead=2 * STEPS)
        for batch, given in loop:
            all_read.wait()
            stream.wait_stream(torch.cuda.default_stream())
            no_waits("error")
            outputs = kept(module(given))
            back(outputs)
            module.step()
            no_waits("default")
            twin.step([forward_of(batch, outputs)])
    twin.assert_same()


def test_bags_and_ids_outside_a_loop(module):
    twin = Twin(module)
    for batch in batches():
        outputs = kept(module(there(batch)))
        back(outputs)
        module.step()
        twin.step([forward_of(batch, outputs)])
    twin.assert_same()


def test_weights_of_the_model_are_not_read(module, no_waits):
    rng, all_read = np.random.default_rng(5), threading.Event()
    (ids, offsets), other = (
        bags_of(rng),
        {"y": bags_of(rng), "z": bags_of(rng), "w": ids_of(rng, 5)},
    )
    twin = Twin(module)

    def loader() -> Iterator[Any]:
        yield there({"x": (ids, offsets), **other})
        all_read.set()

    for given in module.ahead(loader(), features=lambda given: given):
        all_read.wait()
        weights = torch.linspace(-1, 1, len(ids), device="cuda").requires_grad_()
        no_waits("error")
        outputs = kept(module(given | {"x": (*given["x"], weights)}))
        back(outputs)
        module.step()
        no_waits("default")
        assert weights.grad is not None
        batch = {"x": (ids, offsets, weights.detach().cpu().numpy()), **other}
        twin.step([forward_of(batch, outputs)])
    twin.assert_same()
