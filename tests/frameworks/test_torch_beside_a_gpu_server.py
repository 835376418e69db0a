"""Torch beside a server that shares its GPU: ids, rows and gradients stay there, and the tables
come to the digests of the same training on the CPU."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import Adam  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import EmbeddingBag  # noqa: E402
from tests.frameworks.emulated_cuda import EmulatedCuda  # noqa: E402
from tests.frameworks.gpu_training import (  # noqa: E402
    back,
    bag,
    collection,
    features,
    ids_of,
    moved,
    table,
)
from tests.frameworks.test_torch_on_gpu import CASES, OUTSIDE, STEPS  # noqa: E402
from tests.kernels.emulation.peer import EmulatedGpu  # noqa: E402
from tests.service.device.conftest import gpu, server, settings  # noqa: E402, F401
from tests.service.device.samples import GpuServer  # noqa: E402
from tests.service.device.travelling import Travelled  # noqa: E402
from tests.service.faults.losing import needs_compiler  # noqa: E402
from tests.serving import patient  # noqa: E402

pytestmark = needs_compiler


@pytest.fixture
def beside(server: GpuServer) -> Iterator[Store]:  # noqa: F811
    with patient(f"unix:{server.socket}") as store:
        yield store


@pytest.fixture
def cuda(gpu: EmulatedGpu, monkeypatch: pytest.MonkeyPatch) -> EmulatedCuda:  # noqa: F811
    return EmulatedCuda(gpu.runtime, lambda: gpu.lock, monkeypatch)


CHOSEN = "collection", "micro-batches", "no ids", "weights of the model", "ids", "float16"


def assert_same_digests(store: Store, expected: Store) -> None:
    for name in expected.tables():
        assert store.table(name).digest() == expected.table(name).digest(), name


@pytest.mark.parametrize("name", CHOSEN)
def test_a_loop_leaves_the_gpu_for_nothing(
    embedded: Store, beside: Store, cuda: EmulatedCuda, name: str
) -> None:
    CASES[name].train(embedded, torch.from_numpy)
    with cuda:
        CASES[name].train(beside, cuda.tensor)
    assert_same_digests(beside, embedded)
    assert not cuda.copied_to


@pytest.mark.parametrize("name", [name for name in CHOSEN if name in OUTSIDE])
def test_keys_rows_and_gradients_stay_there_outside_a_loop(
    embedded: Store, beside: Store, cuda: EmulatedCuda, name: str
) -> None:
    """Where bags begin is read, and sent; and whether any id is padding."""
    CASES[name].train_outside(embedded, torch.from_numpy)
    with cuda, cuda.reading():
        CASES[name].train_outside(beside, cuda.tensor)
    assert_same_digests(beside, embedded)
    assert cuda.elements_read == (STEPS + 1) * (CASES[name].read + 1)


def test_a_step_is_two_messages_each_way_that_have_no_row_and_no_gradient(
    server: GpuServer,  # noqa: F811
    beside: Store,
    cuda: EmulatedCuda,
    gpu: EmulatedGpu,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What travels, and crosses the bus, is which key each id is: 4 bytes, and a row is of 256."""
    dim, count = 64, 2_000
    module = EmbeddingBag(beside, "a", dim=dim, optimizer=Adam(0.1), **table(), mode="sum")
    rng, found = np.random.default_rng(1), []
    batches = [cuda.tensor(ids_of(rng, count).reshape(-1, 4)) for _ in range(8)]
    travelled = Travelled(monkeypatch)
    runtimes = server.runtime, gpu.runtime

    def moved_so_far() -> Any:
        over_the_bus = [n for r in runtimes for n in (r.uploaded_bytes, r.downloaded_bytes)]
        return np.array([*travelled.of_this_thread, *over_the_bus])

    with cuda:
        for ids in module.ahead(batches, features=lambda ids: ids, lookahead=1):
            before = moved_so_far()
            back(module(ids))
            module.step()
            found.append(moved_so_far() - before)
    for sent, bytes_there_and_back, up, down, *of_trainer in found[3:]:
        assert sent == 2
        assert bytes_there_and_back <= 4 * count + 2_500
        assert up <= 4 * count + 2_500
        assert down <= 500
        assert of_trainer == [0, 0]


ANOTHER_GPU = "another GPU"
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gRPC": ({"transport": "grpc"}, {}),
    ANOTHER_GPU: ({}, {}),
    "rows on the host": ({}, {"rows": "host"}),
    "updates that are applied here": ({}, {"waits": "none"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_where_no_rows_are_to_be_there_they_go_through_the_host(
    embedded: Store,
    server: GpuServer,  # noqa: F811
    cuda: EmulatedCuda,
    gpu: EmulatedGpu,  # noqa: F811
    way: str,
) -> None:
    options, session = WAYS[way]
    gpu.name = "cuda:1" if way == ANOTHER_GPU else gpu.name
    address = server.address if options else f"unix:{server.socket}"

    def train(store: Store, to: Callable[[Any], Any], **session: Any) -> None:
        module, rng = bag(store), np.random.default_rng(2)
        batches = [to(ids_of(rng, 12).reshape(4, 3)) for _ in range(3)]
        for ids in module.ahead(batches, features=lambda ids: ids, **session):
            back(module(ids))
            module.step()

    train(embedded, torch.from_numpy)
    with patient(address, **options) as store, cuda, cuda.reading():
        train(store, cuda.tensor, **session)
        assert_same_digests(store, embedded)
    assert cuda.elements_read
    assert not gpu.opened or session, "where the trainer has its arrays elsewhere nothing is opened"


@pytest.mark.parametrize("is_ahead", [False, True])
def test_ids_on_both_sides_are_one_update(
    embedded: Store, beside: Store, cuda: EmulatedCuda, *, is_ahead: bool
) -> None:
    rng = np.random.default_rng(3)
    batches = [[features(rng), features(rng), features(rng)] for _ in range(2)]

    def train(store: Store, to: Callable[[Any], Any]) -> None:
        module = collection(store)

        def put(batch: Any) -> Any:
            mixed = {
                n: moved(of, to if n in "xw" else torch.from_numpy) for n, of in batch[0].items()
            }
            return [mixed, moved(batch[1], to), moved(batch[2], torch.from_numpy)]

        loop: Any = [put(batch) for batch in batches]
        for batch in module.ahead(loop, features=lambda batch: batch) if is_ahead else loop:
            for given in batch:
                back(module(given))
            module.step()

    train(embedded, torch.from_numpy)
    with cuda, cuda.reading():
        train(beside, cuda.tensor)
    assert_same_digests(beside, embedded)
