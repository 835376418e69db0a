"""Modules whose tables hash ids train the rows that hash_ids names, whatever ids come as."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import Adam, InvalidArgumentError, Uniform, hash_ids  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import (  # noqa: E402
    Bag,
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    Ids,
)
from tests.frameworks.tables import DIM, ROWS, rows_of  # noqa: E402
from tests.frameworks.test_torch_shapes import Jagged  # noqa: E402

TABLE: dict[str, Any] = {
    "dim": DIM,
    "rows": ROWS,
    "seed": 7,
    "optimizer": Adam(0.1),
    "initializer": Uniform(-1, 1),
}
WORDS = ["user_1", "ü", "", "5", "user_1"]
NUMBERS = [5, -3, 2**63 - 1, 0, 5]


def hashed(ids: Any, table: str = "t") -> Any:
    return torch.from_numpy(hash_ids(ids, feature=table, rows=ROWS))


def train(module: Any, *arguments: Any) -> None:
    outputs = module(*arguments)
    every = outputs.values() if isinstance(outputs, dict) else [outputs]
    sum(weighted(output) for output in every).backward()
    module.step()


def weighted(output: Any) -> Any:
    """Return a loss in which no two rows of an output count alike."""
    rows = output.values() if output.is_nested else output.reshape(-1, DIM)
    return (rows.square() * torch.arange(1.0, len(rows) + 1)[:, None]).sum()


def trained(store: Store, kind: Any, ids: Any, *rest: Any, **options: Any) -> None:
    """Train a table by hashed ids, and another by the keys that hash_ids makes of them."""
    train(kind(store, "t", ids="hash", **TABLE, **options), ids, *rest)
    train(kind(store, "keys", **TABLE, **options), hashed(ids), *rest)
    assert rows_of(store, "t").tobytes() == rows_of(store, "keys").tobytes()
    assert store.table("t").t == 1


@pytest.mark.parametrize(
    "ids",
    [
        WORDS,
        np.array(WORDS),
        np.array([WORDS, WORDS[::-1]]),
        [word.encode() for word in WORDS],
        ["5", 5, 2**64 - 2, None],
        torch.tensor(NUMBERS),
        torch.tensor([[5, 3], [7, 0]], dtype=torch.int32),
        torch.tensor([2**64 - 2, 3], dtype=torch.uint64),
        np.array([2**64 - 2, 3], np.uint64),
    ],
    ids=str,
)
def test_ids_of_any_kind(embedded, ids):
    trained(embedded, Embedding, ids)


def test_bags(embedded):
    trained(embedded, EmbeddingBag, [["a", "b", ""], ["b", "b", "c"]])


def test_bags_with_offsets_and_weights(embedded):
    offsets, weights = torch.tensor([0, 2, 2]), torch.linspace(0, 1, 5)
    trained(embedded, EmbeddingBag, WORDS, offsets, weights, mode="sum")


def test_nested_tensors(embedded):
    parts = [torch.tensor([-9, 2**62]), torch.tensor([3])]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)
    train(Embedding(embedded, "t", ids="hash", **TABLE), nested)
    keys = torch.nested.nested_tensor([hashed(part) for part in parts], layout=torch.jagged)
    train(Embedding(embedded, "keys", **TABLE), keys)
    assert rows_of(embedded, "t").tobytes() == rows_of(embedded, "keys").tobytes()


def tables(names: str, **options: Any) -> list[Any]:
    a, b = names
    return [
        Bag(a, features=["x", "y"], **TABLE, **options),
        Ids(a, features=["z"], **TABLE, **options),
        Bag(b, features=["x"], **TABLE, **options),
    ]


def test_features_of_one_table_share_ids_and_tables_do_not(embedded):
    features = {"x": ["a", "b"], "y": np.array([["a", "c"], ["b", "b"]]), "z": ["b", "b"]}
    module = EmbeddingBagCollection(embedded, tables("tu", ids="hash"))
    found = module(features)
    assert torch.equal(found["z"][0], found["x@t"][1])
    assert not torch.equal(found["x@t"], found["x@u"])
    train(module, features)
    twin = EmbeddingBagCollection(embedded, tables("kl"))
    given = {name: hashed(ids) for name, ids in features.items()}
    # One feature has other keys in the other table.
    split = [table for table in twin.entries if table.name == "k"]
    train(EmbeddingBagCollection(embedded, split), given)
    assert rows_of(embedded, "t").tobytes() == rows_of(embedded, "k").tobytes()
    train(EmbeddingBag(embedded, "l", mode="sum", **TABLE), hashed(["a", "b"], "u")[:, None])
    assert rows_of(embedded, "u").tobytes() == rows_of(embedded, "l").tobytes()


def test_a_keyed_jagged_tensor(embedded):
    values, lengths = torch.tensor([7, -2, 2**62, 7]), torch.tensor([1, 0, 2, 1])
    given = Jagged(["x", "y"], values, lengths=lengths)
    entry: dict[str, Any] = {"features": ["x", "y"], **TABLE}
    train(EmbeddingBagCollection(embedded, [Bag("t", ids="hash", **entry)]), given)
    given = Jagged(["x", "y"], hashed(values), lengths=lengths)
    train(EmbeddingBagCollection(embedded, [Bag("keys", **entry)]), given)
    assert rows_of(embedded, "t").tobytes() == rows_of(embedded, "keys").tobytes()


@pytest.mark.parametrize(
    ("ids", "padding"),
    [
        ([["a", "", "b"], ["", None, ""]], ""),
        ([["a", "<pad>", ""], ["<pad>", "b", "<pad>"]], "<pad>"),
        ([[3, 0, -1], [-1, 0, 2**62]], 0),
        ([[3, -7, -1], [-1, -1, 0]], -7),
    ],
)
def test_padding_is_an_id_before_it_is_hashed(embedded, ids, padding):
    bags = [[one for one in bag if one not in (padding, -1, None)] for bag in ids]
    module = Embedding(embedded, "t", ids="hash", padding_idx=padding, **TABLE)
    found = module(ids)
    for row, bag in zip(found, ids, strict=True):
        for values, one in zip(row, bag, strict=True):
            assert values.any() == (one not in (padding, -1, None))
    train(module, ids)
    flat = [one for bag in bags for one in bag]
    twin = Embedding(embedded, "keys", **TABLE)
    keys = torch.full(tuple(np.shape(np.array(ids, object))), -1)
    places = [(i, j) for i, bag in enumerate(ids) for j, one in enumerate(bag) if one in flat]
    for place, key in zip(places, hashed(flat), strict=True):
        keys[place] = key
    train(twin, keys)
    assert rows_of(embedded, "t").tobytes() == rows_of(embedded, "keys").tobytes()


def test_steps_ahead_are_of_the_same_rows(store):
    batches = [["a", "b"], ["b", "c"], ["ü"]]
    module = Embedding(store, "t", ids="hash", **TABLE)
    for batch in module.ahead(batches, features=lambda batch: (batch,)):
        train(module, batch)
    twin = Embedding(store, "keys", **TABLE)
    for batch in batches:
        train(twin, hashed(batch))
    assert rows_of(store, "t").tobytes() == rows_of(store, "keys").tobytes()


def test_one_id_is_no_array_of_ids(embedded):
    """Of a list of text `ahead` makes forwards, each of one id."""
    module = Embedding(embedded, "t", ids="hash", **TABLE)
    with pytest.raises(InvalidArgumentError, match="an array or a list of ids, found 'user_1'"):
        for _ in module.ahead([WORDS], features=lambda batch: batch):
            pass


def test_a_copy_hashes_too(server):
    from tests.serving import patient

    with patient(server.address) as store:
        module = Embedding(store, "t", ids="hash", padding_idx="", **TABLE).eval()
        for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert torch.equal(copied(WORDS), module(WORDS))


def test_ids_that_are_no_keys_are_refused_with_advice(embedded):
    module = Embedding(embedded, "t", **TABLE)
    bags = EmbeddingBagCollection(embedded, [Bag("u", features=["x"], **TABLE)])
    for ids in (WORDS, np.array(WORDS), torch.tensor([1.0]), torch.tensor([1], dtype=torch.uint64)):
        for call in (lambda ids=ids: module(ids), lambda ids=ids: bags({"x": ids})):
            with pytest.raises(InvalidArgumentError) as refused:
                call()
            assert "embstore.hash_ids(" in str(refused.value)
            assert 'ids="hash"' in str(refused.value)
    with pytest.raises(InvalidArgumentError, match=r"keys in \[0, 50\), found -3; .*hash_ids"):
        module(torch.tensor([-3]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ids": "text"}, 'expected ids to be "keys" or "hash", found \'text\''),
        ({"padding_idx": "a"}, r"expected padding_idx to be in \[0, 50\), found 'a'"),
        ({"padding_idx": -2}, r"expected padding_idx to be in \[0, 50\), found -2"),
    ],
)
def test_what_a_table_refuses(options, said):
    with pytest.raises(InvalidArgumentError, match=said):
        Ids("t", features=["x"], **TABLE, **options)


def test_entries_of_one_table_agree_on_what_ids_are(embedded):
    entries = [Bag("t", features=["x"], **TABLE), Ids("t", features=["y"], ids="hash", **TABLE)]
    with pytest.raises(InvalidArgumentError, match="all its entries to have the same ids"):
        EmbeddingBagCollection(embedded, entries)
