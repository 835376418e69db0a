"""Torch on a GPU that it shares with the store: ids, rows and gradients stay there, and the tables
come to the digests of the same training on the CPU."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

import embstore  # noqa: E402
from embstore import Adam, InvalidArgumentError, Sgd  # noqa: E402
from embstore.device.gpu import GpuDevice  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import (  # noqa: E402
    Bag,
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    Ids,
    clip_grad_norm_,
)
from tests.frameworks.conftest import CACHE_BYTES  # noqa: E402
from tests.frameworks.emulated_cuda import EmulatedCuda  # noqa: E402
from tests.frameworks.gpu_training import (  # noqa: E402
    ROWS,
    back,
    bag,
    bags_of,
    collection,
    digests,
    features,
    ids_of,
    moved,
    table,
)
from tests.kernels.emulation.counting import CountingRuntime  # noqa: E402

STEPS = 4


@pytest.fixture
def runtime() -> CountingRuntime:
    return CountingRuntime(name="cuda:0")


@pytest.fixture
def on_gpu(runtime: CountingRuntime, tmp_path: Any) -> Iterator[Store]:
    device = GpuDevice(runtime, 1)
    with embstore.open(
        tmp_path / "gpu", device=device, cache_bytes=CACHE_BYTES, host_cache_bytes=0
    ) as store:
        yield store


@pytest.fixture
def cuda(on_gpu: Store, monkeypatch: pytest.MonkeyPatch) -> EmulatedCuda:
    return EmulatedCuda.of(on_gpu, monkeypatch)


class Case:
    """What is trained, and how: the same on the CPU and on the GPU."""

    def __init__(
        self,
        make: Callable[[Store], Any],
        batch: Callable[[Any], Any],
        read: int = 0,
        forward: Callable[[Any, Any], None] | None = None,
    ) -> None:
        self._make, self._batch, self._forward = make, batch, forward or trained
        self.read = read
        """Elements of a batch that are read outside a loop: offsets; where some ids are padding,
        whether each one is."""

    def batches(self, to: Callable[[Any], Any]) -> list[Any]:
        rng = np.random.default_rng(7)
        return [moved(self._batch(rng), to) for _ in range(STEPS)]

    def train(self, store: Store, to: Callable[[Any], Any]) -> None:
        module = self._make(store)
        for batch in module.ahead(self.batches(to), features=lambda batch: batch, lookahead=2):
            for given in batch if isinstance(batch, list) else [batch]:
                self._forward(module, given)
            module.step()

    def train_outside(self, store: Store, to: Callable[[Any], Any]) -> None:
        """Do so without a loop, and evaluate one batch."""
        module = self._make(store)
        for batch in self.batches(to):
            self._forward(module, batch)
            module.step()
        module.eval()(*batch if isinstance(batch, tuple) else (batch,))


def one_tensor(rng: np.random.Generator) -> dict[str, Any]:
    """Return features that share ids, and not bags."""
    ids, offsets = bags_of(rng)
    return {"x": (ids, offsets), "y": (ids, np.arange(12)), "z": (ids, offsets), "w": ids}


def trained(module: Any, given: Any) -> None:
    back(module(*given) if isinstance(given, tuple) else module(given))


def weighted(module: Any, given: Any) -> None:
    """Weigh ids by what the model computes: it was not announced."""
    weights = torch.linspace(-1, 1, 12, device=given[0].device).requires_grad_()
    back(module(*given, weights * 3))
    assert weights.grad is not None


def padded(rng: np.random.Generator) -> Any:
    return np.where(rng.random(12) < 0.7, -1, ids_of(rng, 12))


def two_ways(store: Store) -> Any:
    """Return tables that share a feature, and one that is pooled and is not."""
    adam = table(dim=4, optimizer=Adam(0.1), padding_idx=1)
    tables = [
        Bag("a", features=["x"], **adam),
        Bag("b", features=["y", "z"], mode="mean", **adam),
        Ids("a", features=["w"], **adam),
        Bag("a", features=["y"], mode="mean", **adam),
    ]
    return EmbeddingBagCollection(store, tables)


CASES = {
    "collection": Case(collection, features, 15),
    "micro-batches": Case(collection, lambda rng: [features(rng), features(rng)]),
    "bags of one length": Case(bag, lambda rng: ids_of(rng, 12).reshape(4, 3)),
    "int32": Case(bag, lambda rng: ids_of(rng, 12).reshape(4, 3).astype(np.int32)),
    "one tensor of ids": Case(collection, one_tensor, 22),
    "no ids": Case(bag, lambda rng: (np.empty(0, np.int64), np.array([0, 0])), 2),
    "means": Case(partial(bag, mode="mean"), bags_of, 5),
    "weights of the model": Case(bag, bags_of, 5, weighted),
    "ids": Case(
        lambda store: Embedding(store, "a", dim=4, optimizer=Sgd(0.1), **table()),
        lambda rng: ids_of(rng, 12).reshape(2, 3, 2),
    ),
    "hashed ids": Case(
        lambda store: Embedding(store, "a", dim=4, optimizer=Sgd(0.1), ids="hash", **table()),
        lambda rng: ids_of(rng, 12).reshape(4, 3),
        12,
    ),
    "padding": Case(partial(bag, mode="mean"), lambda rng: padded(rng).reshape(4, 3), 12),
    "padding of ids": Case(
        lambda store: Embedding(
            store, "a", dim=4, optimizer=Adam(0.1), **table(padding_idx=1), dtype=torch.bfloat16
        ),
        padded,
        12,
    ),
    "padding and weights": Case(
        partial(bag, mode="mean"), lambda rng: (padded(rng), bags_of(rng)[1]), 17, weighted
    ),
    "padding alone": Case(bag, lambda rng: np.full((2, 3), -1), 6),
    "one table in two ways": Case(two_ways, features, 73),
    "float16": Case(partial(collection, dtype=torch.float16), features, 15),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_loop_leaves_the_gpu_for_nothing(
    embedded: Store, on_gpu: Store, cuda: EmulatedCuda, case: Case
) -> None:
    case.train(embedded, torch.from_numpy)
    with cuda:
        case.train(on_gpu, cuda.tensor)
    assert digests(on_gpu) == digests(embedded)
    assert not cuda.copied_to


def test_a_step_waits_once_and_moves_no_rows(
    on_gpu: Store, cuda: EmulatedCuda, runtime: CountingRuntime
) -> None:
    """For what is wrong with its gradients; what crosses the bus is which key each id is."""
    dim, count = 64, 2_000
    module = EmbeddingBag(on_gpu, "a", dim=dim, optimizer=Adam(0.1), **table(), mode="sum")
    rng, found = np.random.default_rng(1), []
    batches = [cuda.tensor(ids_of(rng, count).reshape(-1, 4)) for _ in range(8)]

    def step(ids: Any) -> None:
        back(module(ids))
        module.step()

    with cuda:
        for ids in module.ahead(batches, features=lambda ids: ids, lookahead=1):
            while not on_gpu.sessions.stats()[0]["ready_steps"]:
                pass
            before = runtime.uploaded_bytes, runtime.downloaded_bytes
            costs = runtime.counted(partial(step, ids))
            up, down = runtime.uploaded_bytes - before[0], runtime.downloaded_bytes - before[1]
            found.append((costs["waits"], up, down))
    for waits, up, down in found[3:]:
        assert waits == 1
        assert up <= 4 * count + 2_500
        assert down <= 200


OUTSIDE = [name for name in CASES if name != "micro-batches"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_keys_rows_and_gradients_stay_there_outside_a_loop(
    embedded: Store, on_gpu: Store, cuda: EmulatedCuda, name: str
) -> None:
    """Where bags begin is read, and sent; and whether any id is padding."""
    CASES[name].train_outside(embedded, torch.from_numpy)
    with cuda, cuda.reading():
        CASES[name].train_outside(on_gpu, cuda.tensor)
    assert digests(on_gpu) == digests(embedded)
    assert cuda.elements_read == (STEPS + 1) * (CASES[name].read + 1)


class Jagged:
    """What TorchRec's KeyedJaggedTensor says of itself."""

    def __init__(self, values: Any, offsets: Any) -> None:
        self._values, self._offsets = values, offsets

    def keys(self) -> list[str]:
        return ["x", "w", "other", "y", "z"]

    def values(self) -> Any:
        return self._values

    def offsets(self) -> Any:
        return self._offsets


def test_features_of_a_jagged_tensor_are_known_as_its_views(
    embedded: Store, on_gpu: Store, cuda: EmulatedCuda
) -> None:
    def batch(rng: np.random.Generator) -> tuple[Any, Any]:
        offsets = np.arange(11) * 2
        return ids_of(rng, 20), offsets

    case = Case(collection, batch)
    for store, to in ((embedded, torch.from_numpy), (on_gpu, cuda.tensor)):
        with cuda if store is on_gpu else torch.enable_grad():
            module = collection(store)
            batches = [Jagged(*given) for given in case.batches(to)]
            for given in module.ahead(batches, features=lambda given: given):
                back(module(given))
                module.step()
    assert digests(on_gpu) == digests(embedded)
    assert not cuda.copied_to


@pytest.mark.parametrize("change", ["other memory", "changed"])
def test_what_is_not_as_it_was_announced_is_read(
    on_gpu: Store, cuda: EmulatedCuda, change: str
) -> None:
    module = bag(on_gpu)
    ids = cuda.tensor(np.array([[1, 2], [2, 5]]))
    with cuda:
        for given in module.ahead([ids], features=lambda ids: ids):
            if change == "changed":
                given.copy_(given.flip(0))
                found: Any = given
            else:
                found = given.clone()
            with pytest.raises(AssertionError, match="cpu of a tensor on the GPU"):
                module(found)
            with cuda.reading():
                back(module(found))
            module.step()
            assert module.last_step == 1
            given.fill_(7)
            with cuda.reading(), pytest.raises(InvalidArgumentError, match="which is finished"):
                module(given)


def test_ids_that_were_not_announced_are_refused(on_gpu: Store, cuda: EmulatedCuda) -> None:
    module = bag(on_gpu)
    with cuda, cuda.reading():
        for given in module.ahead([cuda.tensor(np.array([[1, 2]]))], features=lambda ids: ids):
            given.fill_(7)
            with pytest.raises(InvalidArgumentError, match="announced for step 1, found 7"):
                module(given)
            back(module(given.fill_(2)))
            module.step()
        for wrong in (-2, ROWS):
            ids = cuda.tensor(np.array([[1, wrong]]))
            with pytest.raises(InvalidArgumentError, match=str(wrong)):
                next(iter(module.ahead([ids], features=lambda ids: ids)))
            with pytest.raises(InvalidArgumentError, match=str(wrong)):
                module(ids)


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("there", ["x", "xw", "yz"])
def test_ids_on_both_sides_are_one_update(
    embedded: Store, on_gpu: Store, cuda: EmulatedCuda, there: str, is_ahead: bool
) -> None:
    """In one forward they go through the host; forwards on the GPU may follow those on the host."""
    rng = np.random.default_rng(3)
    batches = [[features(rng), features(rng), features(rng)] for _ in range(2)]

    def train(store: Store, to: Callable[[Any], Any]) -> None:
        module = collection(store)

        def put(batch: Any) -> Any:
            mixed = {
                n: moved(of, to if n in there else torch.from_numpy) for n, of in batch[0].items()
            }
            return [mixed, moved(batch[1], to), moved(batch[2], torch.from_numpy)]

        loop: Any = [put(batch) for batch in batches]
        for batch in module.ahead(loop, features=lambda batch: batch) if is_ahead else loop:
            for given in batch:
                back(module(given))
            module.step()

    train(embedded, torch.from_numpy)
    with cuda, cuda.reading():
        train(on_gpu, cuda.tensor)
    assert digests(on_gpu) == digests(embedded)


def test_a_second_backward_and_a_forward_computed_again_are_added(
    embedded: Store, on_gpu: Store, cuda: EmulatedCuda
) -> None:
    ids = np.array([[1, 2, 1], [2, 5, 9]])
    for store, to in ((embedded, torch.from_numpy), (on_gpu, cuda.tensor)):
        with cuda if store is on_gpu else torch.enable_grad():
            module = bag(store)
            for given in module.ahead([to(ids)], features=lambda ids: ids):
                module.requires_grad_(False)
                assert not module(given).requires_grad
                module.requires_grad_(True)
                outputs = [module(given), module(given), module(given)]
                for output in (*outputs[1:], outputs[1]):
                    torch.relu_(output.detach())
                    output.backward(torch.ones_like(output), retain_graph=True)
                module.step()
    assert digests(on_gpu) == digests(embedded)


def test_a_scaler_skips_the_store_with_the_dense_part(
    embedded: Store, on_gpu: Store, cuda: EmulatedCuda
) -> None:
    for store, to in ((embedded, torch.from_numpy), (on_gpu, cuda.tensor)):
        with cuda if store is on_gpu else torch.enable_grad(), cuda.reading():
            module, dense = bag(store), torch.nn.Linear(4, 1, bias=False)
            torch.nn.init.ones_(dense.weight)
            optimizer = torch.optim.SGD(dense.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cpu")
            batches = [(to(np.array([[1, 2], [3, 1]])), scale) for scale in (1.0, 1e38, 1.0)]
            for ids, scale in module.ahead(batches, features=lambda batch: batch[0]):
                loss = dense(module(ids)).square().sum() * scale
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                assert module.step(scaler).skipped == (scale > 1)
                scaler.update()
            assert store.table("a").t == 2
    assert digests(on_gpu) == digests(embedded)


def test_what_a_trainer_does_to_its_tensors_afterwards_changes_nothing(
    embedded: Store, on_gpu: Store, cuda: EmulatedCuda
) -> None:
    rng = np.random.default_rng(8)
    batch = features(rng)
    for store, to in ((embedded, torch.from_numpy), (on_gpu, cuda.tensor)):
        given = moved(batch, lambda of, to=to: to(of.copy()))
        with cuda if store is on_gpu else torch.enable_grad(), cuda.reading():
            module = collection(store)
            outputs = module(given)
            for parts in given.values():
                for part in parts if isinstance(parts, tuple) else [parts]:
                    part.zero_()
            back(outputs)
            module.step()
    assert digests(on_gpu) == digests(embedded)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_gradients_are_clipped_there(
    embedded: Store, on_gpu: Store, cuda: EmulatedCuda, is_ahead: bool
) -> None:
    """In a loop nothing waits for it; outside, a forward reads where bags begin."""
    rng = np.random.default_rng(5)
    batches, norms = [features(rng) for _ in range(3)], []

    def train(store: Store, to: Callable[[Any], Any]) -> None:
        module = collection(store)
        loop: Any = [moved(batch, to) for batch in batches]
        for batch in module.ahead(loop, features=lambda batch: batch) if is_ahead else loop:
            back(module(batch))
            back(module(batch))
            norms.append(clip_grad_norm_([], 0.5, module))
            norms.append(clip_grad_norm_([], 0.5, module))
            module.step()

    train(embedded, torch.from_numpy)
    with cuda, nullcontext() if is_ahead else cuda.reading():
        train(on_gpu, cuda.tensor)
    assert not (is_ahead and cuda.copied_to)
    wanted, found = np.split(np.array([float(norm) for norm in norms]), 2)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    np.testing.assert_allclose(found[1::2], 0.5, rtol=1e-5)
    for name in embedded.tables():
        rows = [store.table(name).lookup(np.arange(ROWS)) for store in (embedded, on_gpu)]
        np.testing.assert_allclose(*rows, rtol=0, atol=1e-6)


def test_a_step_clips_its_own_there(embedded: Store, on_gpu: Store, cuda: EmulatedCuda) -> None:
    """Of gradients of both sides, too."""
    rng = np.random.default_rng(6)
    batch = features(rng)
    norms = []
    for store, to in ((embedded, torch.from_numpy), (on_gpu, cuda.tensor)):
        with cuda if store is on_gpu else torch.enable_grad(), cuda.reading():
            module = collection(store)
            back(module(moved(batch, to)))
            back(module(moved(batch, torch.from_numpy)))
            norms.append(module.grad_norm())
            module.step(max_norm=0.5, gradient_scale=2.0)
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    for name in embedded.tables():
        rows = [store.table(name).lookup(np.arange(ROWS)) for store in (embedded, on_gpu)]
        np.testing.assert_allclose(*rows, rtol=0, atol=1e-6)
