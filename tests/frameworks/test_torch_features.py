"""Features in one collection: pooled and not, of one table in two ways, of two tables at once."""

import copy
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import Adagrad, Adam, Sgd, TableHeldError, Uniform  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import Bag, EmbeddingBag, EmbeddingBagCollection, Ids  # noqa: E402
from tests.frameworks.numpy_twin import Forward, Twin, kept  # noqa: E402
from tests.frameworks.tables import DIM, ROWS, TABLE, rows_of  # noqa: E402
from tests.frameworks.test_torch_shapes import Jagged  # noqa: E402

# DIN: a candidate attends to the rows of a history, padded by item 0; beside it the tags of the
# candidate, pooled, and a wide part of one number an item.

ITEMS, TAGS, BATCH, LENGTH, STEPS = 60, 20, 16, 6, 30


def din_batch(number: int) -> tuple[dict[str, Any], Any]:
    rng = np.random.default_rng(number)
    lengths = rng.integers(0, LENGTH + 1, (BATCH, 1))
    history = torch.tensor(rng.integers(1, ITEMS, (BATCH, LENGTH)))
    history[torch.arange(LENGTH) >= torch.tensor(lengths)] = 0
    features = {
        "item": torch.tensor(rng.integers(1, ITEMS, BATCH)),
        "history": history,
        "seen": history,  # the same ids, as a mean
        "tags": torch.tensor(rng.integers(-1, TAGS, (BATCH, 3))),
    }
    return features, torch.tensor(rng.integers(0, 2, (BATCH, 1))).float()


class InStore(torch.nn.Module):
    def __init__(self, store: Store, optimizer: Any) -> None:
        super().__init__()
        items: dict[str, Any] = {
            "dim": 8,
            "rows": ITEMS,
            "optimizer": optimizer,
            "initializer": Uniform(-1, 1),
            "padding_idx": 0,
        }
        self.collection = EmbeddingBagCollection(
            store,
            [
                Ids("items", features=["item", "history"], **items),
                Bag("items", features=["seen"], mode="mean", **items),
                Bag("wide", features=["item"], **items | {"dim": 1}),
                Bag("tags", features=["tags"], **items | {"rows": TAGS, "padding_idx": None}),
            ],
        )

    def forward(self, features: Any) -> dict[str, Any]:
        return self.collection(features)


class InMemory(torch.nn.Module):
    """The same tables as Torch has them."""

    def __init__(self, store: Store) -> None:
        super().__init__()

        def of(kind: Any, name: str, rows: int, dim: int, **options: Any) -> Any:
            module = kind(rows, dim, padding_idx=0, **options)
            values = store.table(name).lookup(np.arange(rows - (name == "tags")), admit=False)
            module.weight.data[(name == "tags") :] = torch.tensor(values)
            module.weight.data[0] = 0
            return module

        self.items = of(torch.nn.Embedding, "items", ITEMS, 8)
        self.wide = of(torch.nn.Embedding, "wide", ITEMS, 1)
        self.tags = of(torch.nn.EmbeddingBag, "tags", TAGS + 1, 8, mode="sum")

    def forward(self, features: Any) -> dict[str, Any]:
        seen = torch.nn.functional.embedding_bag(
            features["seen"], self.items.weight, mode="mean", padding_idx=0
        )
        return {
            "item@items": self.items(features["item"]),
            "history": self.items(features["history"]),
            "seen": seen,
            "item@wide": self.wide(features["item"]),
            "tags": self.tags(features["tags"] + 1),
        }


class Dense(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.top = torch.nn.Sequential(
            torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        )

    def forward(self, rows: dict[str, Any], is_item: Any) -> Any:
        item, history = rows["item@items"], rows["history"]
        scores = (history @ item[:, :, None]).squeeze(2).masked_fill(~is_item, -1e9)
        attended = (scores.softmax(dim=1)[:, :, None] * history).sum(dim=1)
        joined = torch.cat([item, attended, rows["seen"], rows["tags"]], dim=1)
        return self.top(joined) + rows["item@wide"]


def losses_of(embeddings: Any, batches: Any, optimizers: Any) -> list[float]:
    """Train on the batches; `optimizers` returns what steps, of the dense part."""
    dense, losses = Dense(), []
    stepping = optimizers(dense)
    for features, labels in batches:
        logits = dense(embeddings(features), features["history"] > 0)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        for optimizer in stepping:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in stepping:
            optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", ["sgd", "adagrad"])
def test_din_in_one_loop_has_the_losses_of_torch(store: Store, kind: str) -> None:
    of_rows: Any = {"sgd": Sgd(0.3), "adagrad": Adagrad(0.1, epsilon=0.01)}[kind]
    # With an epsilon of 1e-10 Adagrad's first steps make signs of gradients that are all rounding.
    in_torch = {"sgd": torch.optim.SGD, "adagrad": partial(torch.optim.Adagrad, eps=0.01)}[kind]
    ours = InStore(store, of_rows)
    theirs = InMemory(store)
    batches = [din_batch(number) for number in range(STEPS)]

    def of_dense(dense: Any) -> Any:
        return torch.optim.Adam(dense.parameters())

    announced = ours.collection.ahead(batches, features=lambda batch: batch[0])
    found = losses_of(ours, announced, lambda dense: [of_dense(dense), ours.collection])
    rate = of_rows.learning_rate
    wanted = losses_of(
        theirs, batches, lambda dense: [of_dense(dense), in_torch(theirs.parameters(), lr=rate)]
    )
    np.testing.assert_allclose(found, wanted, rtol=5e-6)
    assert wanted[-1] < 0.9 * wanted[0]
    assert {name: store.table(name).t for name in store.tables()} == dict.fromkeys(
        ("items", "tags", "wide"), STEPS
    )
    rows = store.table("items").lookup(np.arange(1, ITEMS))
    np.testing.assert_allclose(rows, theirs.items.weight.detach()[1:], rtol=1e-4, atol=1e-5)


# One table in two ways, one feature in two tables


def shared(store: Store) -> EmbeddingBagCollection:
    adam = TABLE | {"optimizer": Adam(0.1)}
    return EmbeddingBagCollection(
        store,
        [
            Bag("a", features=["item"], **adam),
            Bag("b", features=["item", "other"], **adam | {"dim": 2}),
            Bag("a", features=["history"], mode="mean", **adam),
            Ids("a", features=["last"], **adam),
        ],
    )


NAMES = ["item@a", "item@b", "other", "history", "last"]
ITEM, OTHER = torch.tensor([[3], [9]]), torch.tensor([[5, 5], [5, 3]])
HISTORY, OFFSETS = torch.tensor([3, 3, 7, 9]), torch.tensor([0, 3])
GIVEN = {"item": ITEM, "other": OTHER, "history": (HISTORY, OFFSETS), "last": torch.tensor([7, 3])}


def test_one_table_has_one_update_a_step_whatever_its_modes(store: Store) -> None:
    module = shared(store)
    twin = Twin(module)
    assert list(module.tables) == ["a", "b"]
    bags = {
        "item@a": (ITEM[:, 0].numpy(), None, None),
        "item@b": (ITEM[:, 0].numpy(), None, None),
        "other": (OTHER.reshape(-1).numpy(), np.array([0, 2, 4]), None),
        "history": (HISTORY.numpy(), np.array([0, 3, 4]), None),
        "last": (np.array([7, 3]), None, None),
    }
    for step in range(3):
        batches = [GIVEN] if step else module.ahead([GIVEN], features=lambda given: given)
        for given in batches:
            outputs = kept(module(given))
            assert list(outputs) == NAMES
            torch.cat([of.square().cumsum(0) for of in outputs.values()], dim=1).sum().backward()
            module.step()
            twin.step([Forward(bags, outputs)])
    twin.assert_same()
    assert (store.table("a").t, store.table("b").t) == (3, 3)


def test_a_keyed_jagged_tensor_is_looked_up_in_both_tables(embedded: Store) -> None:
    module = shared(embedded)
    values = torch.cat([ITEM.reshape(-1), torch.tensor([7, 3]), HISTORY, OTHER.reshape(-1)])
    lengths = torch.tensor([1, 1, 1, 1, 3, 1, 2, 2])
    found = module(Jagged(["item", "last", "history", "other"], values, lengths))
    torch.testing.assert_close(found, module(GIVEN))


def test_another_module_of_a_table_is_an_update_of_its_own(store: Store) -> None:
    """And none while the first is in a loop: the guide says to make them one collection."""
    modules = [EmbeddingBag(store, "t", **TABLE, mode=mode) for mode in ("sum", "mean")]
    for module in modules:
        module(ITEM).sum().backward()
        module.step()
    assert store.table("t").t == 2
    for given in modules[0].ahead([ITEM], features=lambda ids: ids):
        for module in modules:
            module(given).sum().backward()
        with pytest.raises(TableHeldError):
            modules[1].step()
        modules[1].zero_grad()
        modules[0].step()
    assert store.table("t").t == 3


def test_copies_know_their_features(store: Store) -> None:
    module = shared(store)
    wanted = module(GIVEN)
    torch.testing.assert_close(copy.deepcopy(module)(GIVEN), wanted)
    carried = pickle.loads(pickle.dumps(module))
    carried.attach(store)
    torch.testing.assert_close(carried(GIVEN), wanted)
    assert repr(module).count("Bag(name='a'") == 2


# Weighted means

IDS, WEIGHTS = torch.tensor([3, 3, 7, 1, 49, 7]), [0.5, 1.5, 2.0, -1.0, 3.0, 0.25]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_weighted_mean_is_divided_by_the_sum_of_weights(embedded: Store, dtype: Any) -> None:
    module = EmbeddingBag(embedded, "t", **TABLE, mode="mean", padding_idx=1)
    before = torch.tensor(rows_of(embedded, "t"))
    weights = torch.tensor(WEIGHTS, dtype=dtype, requires_grad=True)
    found = module(IDS, torch.tensor([0, 3, 3]), weights)
    rows = before.to(dtype).requires_grad_()
    own = torch.tensor(WEIGHTS, dtype=dtype, requires_grad=True)
    left = torch.tensor([4, 5])  # of the last bag, but for padding
    wanted = torch.stack(
        [
            (own[:3, None] * rows[IDS[:3]]).sum(0) / own[:3].sum(),
            torch.zeros(DIM, dtype=dtype),
            (own[left, None] * rows[IDS[left]]).sum(0) / own[left].sum(),
        ]
    )
    torch.testing.assert_close(found, wanted)
    for output in (found, wanted):
        (output * torch.linspace(-1, 1, 3 * DIM).reshape(3, DIM)).sum().backward()
    module.step()
    torch.testing.assert_close(weights.grad, own.grad)
    after = torch.tensor(rows_of(embedded, "t"))
    torch.testing.assert_close(before - after, rows.grad.float(), rtol=1e-5, atol=1e-6)


def test_gradients_of_weights_of_a_mean_pass_gradcheck(embedded: Store) -> None:
    module = EmbeddingBag(embedded, "t", **TABLE, mode="mean")
    weights = torch.tensor(WEIGHTS, dtype=torch.float64, requires_grad=True)
    offsets = torch.tensor([0, 2, 2])
    assert torch.autograd.gradcheck(lambda w: module(IDS, offsets, w), (weights,))


def test_weights_of_a_mean_that_come_to_zero_are_not_divided(embedded: Store) -> None:
    mean = EmbeddingBag(embedded, "t", **TABLE, mode="mean")
    total = EmbeddingBag(embedded, "t", **TABLE, mode="sum")
    weights = torch.tensor([[1.0, -1.0], [0.0, 0.0], [2.0, 2.0]], requires_grad=True)
    ids = IDS.reshape(3, 2)
    found, wanted = mean(ids, None, weights), total(ids, None, weights)
    torch.testing.assert_close(found[:2], wanted[:2])
    torch.testing.assert_close(found[2], wanted[2] / 4)
    found.sum().backward()
    assert weights.grad.isfinite().all()


def test_masked_means_are_means_of_what_is_left(embedded: Store) -> None:
    """Weights of 0 and 1 are a mask, and so is padding."""
    module = EmbeddingBag(embedded, "t", **TABLE, mode="mean")
    ids, mask = IDS.reshape(2, 3), torch.tensor([[True, False, True], [True, True, False]])
    wanted = module(ids[mask], torch.tensor([0, 2]))
    torch.testing.assert_close(module(ids, None, mask.float()), wanted)
    torch.testing.assert_close(module(torch.where(mask, ids, -1)), wanted)
    assert ROWS > ids.max()
