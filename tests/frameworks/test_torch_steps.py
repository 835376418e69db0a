"""What Torch alone has of steps: its backward passes, its compiler, its loaders and its copies."""

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from embstore import Adam, Sgd, Uniform  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import Embedding, EmbeddingBag  # noqa: E402
from tests.frameworks.bags_of_steps import ROWS  # noqa: E402
from tests.frameworks.numpy_twin import Forward, Twin, kept  # noqa: E402
from tests.frameworks.on_torch import batch_of, collection, loss_of  # noqa: E402
from tests.frameworks.worker_dataset import Activations  # noqa: E402
from tests.serving import Server, patient  # noqa: E402


def forward(module: Any, rng: np.random.Generator) -> Forward:
    given, twins = batch_of(rng)
    return Forward(twins, kept(module(given)))


def test_a_second_backward_adds_to_the_gradient(embedded: Store) -> None:
    rng, module = np.random.default_rng(4), collection(embedded)
    twin, of_batch = Twin(module), forward(module, rng)
    loss_of(of_batch.outputs).backward(retain_graph=True)
    loss_of(of_batch.outputs, "x").backward()
    twin.step([of_batch])
    module.step()
    twin.assert_same()


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_a_forward_that_is_computed_again_counts_once(embedded: Store, is_reentrant: bool) -> None:
    module = EmbeddingBag(embedded, "t", dim=4, rows=ROWS, optimizer=Adam(0.1), mode="sum")
    twin, seen = Twin(module), []

    def computed(scale: Any, ids: Any) -> Any:
        output = module(ids)
        if output.requires_grad:
            output.register_hook(seen.append)
        return (output * scale).sin()

    scale = torch.ones((), requires_grad=True)
    ids = torch.tensor([[1, 2, 1], [2, 5, 9]])
    checkpoint(computed, scale, ids, use_reentrant=is_reentrant).sum().backward()
    (gradient,) = seen
    output = torch.empty(2, 4)
    output.grad = gradient
    flat = (ids.reshape(-1).numpy(), np.array([0, 3, 6]), None)
    twin.step([Forward({"t": flat}, {"t": output})])
    module.step()
    twin.assert_same()


LAYOUTS: dict[str, Any] = {
    "as it is": lambda output: output.sin(),
    "transposed": lambda output: output.T.sin().cumsum(dim=1),
    "one value for all": lambda output: output.sum().sin(),
    "of some": lambda output: output[::2, 1:].sin(),
    "twice": lambda output: output * output,
    "float64": lambda output: output.double().sin(),
}


@pytest.mark.parametrize("of_output", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("ids", [torch.tensor([7, 1, 7]), torch.tensor([[7, 1], [2, 2]])])
def test_a_gradient_counts_as_it_is_whoever_else_has_it(
    embedded: Store, of_output: Any, ids: Any
) -> None:
    """What nobody else has is not copied; what is retained or hooked is, before it is changed."""
    options = {"dim": 4, "rows": ROWS, "optimizer": Adam(0.1), "initializer": Uniform(-1, 1)}
    alone, retained, hooked = (
        EmbeddingBag(embedded, name, seed=5, **options, mode="sum") for name in ("a", "r", "h")
    )
    arguments = (ids,) if ids.dim() == 2 else (ids, torch.arange(len(ids)))
    outputs = {module: module(*arguments) for module in (alone, retained, hooked)}
    outputs[retained].retain_grad()
    seen: list[Any] = []
    outputs[hooked].register_hook(seen.append)
    for output in outputs.values():
        of_output(output).sum().backward()
    outputs[retained].grad.zero_()
    if seen[0].is_contiguous():  # else it is one value for all, which cannot be filled
        seen[0].zero_()
    twin = Twin(alone)
    again = alone(*arguments)
    again.retain_grad()
    of_output(again).sum().backward()
    bounds = np.arange(len(ids) + 1) * (ids.shape[1] if ids.dim() == 2 else 1)
    twin.step([Forward({"a": (ids.reshape(-1).numpy(), bounds, None)}, {"a": again})])
    alone.zero_grad()
    of_output(alone(*arguments)).sum().backward()
    for module in outputs:
        module.step()
    twin.assert_same()
    found = [embedded.table(name).lookup(np.arange(ROWS)) for name in ("a", "r", "h")]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_activations_may_be_changed_in_place(store: Store) -> None:
    """As those of Torch's modules; the rows of the store are not."""
    options = {"dim": 4, "rows": ROWS, "optimizer": Sgd(1.0), "initializer": Uniform(-1, 1)}
    module, ids = Embedding(store, "t", **options), torch.tensor([3, 1, 3])
    before = store.table("t").lookup(np.arange(ROWS))
    plain = torch.nn.Embedding.from_pretrained(torch.tensor(before), freeze=False)
    found, wanted = torch.relu_(module(ids)), torch.relu_(plain(ids))
    torch.testing.assert_close(found, wanted)
    np.testing.assert_array_equal(store.table("t").lookup(np.arange(ROWS)), before)
    found.sum().backward()
    wanted.sum().backward()
    module.step()
    after = store.table("t").lookup(np.arange(ROWS))
    np.testing.assert_allclose(before - after, plain.weight.grad.numpy(), rtol=1e-6, atol=1e-7)


def test_an_id_without_a_gradient_is_not_updated_by_a_step_of_a_session(store: Store) -> None:
    """As it is outside a session, while other ids of its table are."""
    rng, module = np.random.default_rng(14), collection(store)
    twin = Twin(module)
    batches = [[batch_of(rng) for _ in range(2)] for _ in range(6)]
    loop = module.ahead(batches, features=lambda batch: [given for given, _ in batch])
    for number, batch in enumerate(loop):
        first, second = (Forward(twins, kept(module(given))) for given, twins in batch)
        loss_of(first.outputs, ["x", "yz", "xyz"][number % 3]).backward()
        if number % 2:
            loss_of(second.outputs).backward()
        twin.step([first, second])
        module.step()
    twin.assert_same()


def test_what_a_trainer_does_to_its_tensors_afterwards_changes_nothing(embedded: Store) -> None:
    rng, module = np.random.default_rng(8), collection(embedded)
    twin = Twin(module)
    given, twins = batch_of(rng)
    of_batch = Forward(twins, kept(module(given)))
    loss_of(of_batch.outputs).backward()
    twin.step([of_batch])
    for parts in given.values():
        for part in parts:
            part.zero_()
    for output in of_batch.outputs.values():
        output.grad.zero_()
    module.step()
    twin.assert_same()


def test_weights_have_a_gradient_in_evaluation(embedded: Store) -> None:
    module = collection(embedded).eval()
    assert not module(batch_of(np.random.default_rng(9))[0])["y"].requires_grad
    weights = torch.ones(2, 2, requires_grad=True)
    ids = torch.tensor([[1, 2], [3, 4]])
    loss_of(module({"x": (ids, None, weights), "y": ids, "z": ids}), "x").backward()
    assert weights.grad is not None
    assert module.step() is None


# A loop over a session


def test_rows_that_were_used_and_no_step_are_warned_of(embedded: Store) -> None:
    module, ids = (
        EmbeddingBag(embedded, "t", dim=4, rows=ROWS, optimizer=Sgd(0.1), mode="sum"),
        torch.tensor([[1, 2]]),
    )
    with pytest.warns(UserWarning, match="step 1 was looked up, and neither updated"):
        for _ in module.ahead([None], features=lambda _: ids):
            module(ids)
    assert module.last_step == 1


# A compiler


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # looked at by the compiler
def test_a_compiled_model_is_compiled_behind_its_embedding_and_not_in_it(embedded: Store) -> None:
    module = EmbeddingBag(embedded, "t", dim=4, rows=ROWS, optimizer=Adam(0.1), mode="sum")
    dense, graphs = torch.nn.Linear(4, 1), []

    def model(ids: Any) -> Any:
        return dense(module(ids)).sin()

    def compiled(graph: Any, _: Any) -> Any:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    ids = torch.tensor([[1, 2], [2, 3]])
    found = torch.compile(model, backend=compiled)(ids)
    torch.testing.assert_close(found, model(ids))
    assert [len(targets) for targets in graphs] == [1]
    found.sum().backward()
    assert module.step().t == {"t": 1}


# Copies


def test_a_copy_has_the_store_and_no_gradients(embedded: Store) -> None:
    rng, module = np.random.default_rng(12), collection(embedded)
    loss_of(forward(module, rng).outputs).backward()
    copied = copy.deepcopy(module)
    assert copied.store is embedded
    assert copied.step() is None
    assert module.step() is not None


def test_a_file_of_torch_has_no_rows(server: Server, tmp_path: Any) -> None:
    with patient(server.address) as store:
        module = EmbeddingBag(store, "t", dim=64, rows=10_000, optimizer=Sgd(0.1), mode="sum")
        module(torch.arange(10_000)[:, None]).sum().backward()
        assert list(module.parameters()) == []
        torch.save(torch.nn.Sequential(module), tmp_path / "model.pt")
    assert (tmp_path / "model.pt").stat().st_size < 20_000
    arrived = torch.load(tmp_path / "model.pt", weights_only=False)[0]
    assert arrived.step() is None
    assert arrived(torch.tensor([[1]])).shape == (1, 64)
    arrived.store.close()


def test_a_spawned_worker_of_a_loader_may_have_a_module(server: Server) -> None:
    with patient(server.address) as store:
        module = Embedding(store, "t", dim=4, rows=ROWS, optimizer=Sgd(0.1))
        wanted = torch.from_numpy(store.table("t").lookup(np.arange(ROWS)))
        dataset = Activations(module, ROWS)
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=ROWS, num_workers=1, multiprocessing_context="spawn"
        )
        (found,) = loader
    torch.testing.assert_close(found, wanted)
