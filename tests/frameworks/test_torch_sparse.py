"""Modules of sparse keys train to the bit as those of dense ones do, whatever int64 ids are."""

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import InvalidArgumentError, TableExistsError, Uniform, hash_ids  # noqa: E402
from embstore_client.torch import (  # noqa: E402
    Bag,
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    Ids,
)
from tests.frameworks.sparse import (  # noqa: E402
    IDS,
    TABLE,
    TWIN,
    assert_same_rows,
    drawn,
    ids_of,
)
from tests.frameworks.test_torch_hashed import WORDS, train  # noqa: E402
from tests.frameworks.test_torch_shapes import Jagged  # noqa: E402

tensor = torch.from_numpy


def trained(store: Any, kind: Any, places: Any, *rest: Any, **options: Any) -> None:
    """Train a table of sparse keys and one of dense ones by the same ids, twice."""
    modules = kind(store, "t", **TABLE, **options), kind(store, "twin", **TWIN, **options)
    assert store.table("t").rows == 2**64 - 1
    for _ in range(2):
        outputs = []
        for module, ids in zip(modules, (ids_of(places), places), strict=True):
            outputs.append(module(tensor(ids), *rest).detach())
            train(module, tensor(ids), *rest)
        assert outputs[0].numpy().tobytes() == outputs[1].numpy().tobytes()
    assert_same_rows(store, "t", "twin")


def test_ids_of_any_sign(store):
    trained(store, Embedding, drawn(1, 4, 9))


def test_only_minus_one_is_padding(embedded):
    module = Embedding(embedded, "u", **TABLE)
    assert module(torch.tensor([-1, -2])).any(dim=1).tolist() == [False, True]
    trained(embedded, EmbeddingBag, drawn(2, 6, 5, padding=0.4))


def test_bags_with_offsets_and_weights(store):
    offsets, weights = torch.tensor([0, 2, 2]), torch.linspace(0, 1, 9)
    trained(store, EmbeddingBag, drawn(3, 9), offsets, weights, mode="sum")


@pytest.mark.parametrize("place", range(4))
def test_padding_idx_is_any_integer(embedded, place):
    padding = int(IDS[place])
    for number, given in enumerate({padding, padding % 2**64}):
        module = Embedding(embedded, f"t{number}", padding_idx=given, **TABLE)
        found = module(tensor(IDS))
        assert found.any(dim=1).tolist() == (padding != IDS).tolist()
        train(module, tensor(IDS))
        rows = embedded.table(f"t{number}").lookup(IDS)
        assert (rows != 0.25).any(axis=1).tolist() == (padding != IDS).tolist()


@pytest.mark.parametrize("padding", ["a", 2**64, -(2**63) - 1])
def test_what_padding_idx_cannot_be(padding):
    expected = rf"in \[-{2**63}, {2**64}\), found"
    with pytest.raises(InvalidArgumentError, match=expected):
        Ids("t", features=["x"], padding_idx=padding, **TABLE)


def test_unsigned_tensors(embedded):
    module = Embedding(embedded, "t", **TABLE)
    train(module, tensor(IDS.view(np.uint64)))
    train(Embedding(embedded, "twin", **TWIN), torch.arange(len(IDS)))
    assert_same_rows(embedded, "t", "twin")
    with pytest.raises(InvalidArgumentError, match=r"int32 or int64, found torch\.uint64"):
        Embedding(embedded, "twin", **TWIN)(tensor(IDS.view(np.uint64)))


def test_steps_ahead_nested_and_jagged_ids(store):
    def modules() -> Any:
        for name, options in (("t", TABLE), ("twin", TWIN)):
            entries = [
                Bag(name, features=["x", "y"], **options),
                Ids(name, features=["z"], **options),
            ]
            yield EmbeddingBagCollection(store, entries), name == "t"

    lengths = torch.tensor([2, 0, 3, 1, 1, 2])
    for module, is_sparse in modules():
        batches = []
        for seed in range(3):
            places = drawn(seed, 9)
            values = tensor(ids_of(places) if is_sparse else places)
            batches.append(Jagged(["x", "y", "z"], values, lengths=lengths))
        for batch in module.ahead(batches, features=lambda batch: (batch,)):
            train(module, batch)
    assert_same_rows(store, "t", "twin")


def test_hashes_are_keys_as_they_are(embedded):
    module = Embedding(embedded, "t", ids="hash", padding_idx="", **TABLE)
    keys = hash_ids(WORDS, feature="t")
    assert (keys < 0).any()
    train(module, WORDS)
    rows = embedded.table("t").lookup(keys)
    assert (rows != 0.25).any(axis=1).tolist() == [word != "" for word in WORDS]
    assert torch.equal(copy.deepcopy(module).eval()(WORDS), module.eval()(WORDS))


def test_what_a_module_says_of_its_table(embedded):
    module = Embedding(embedded, "t", **TABLE)
    assert "rows=None" in repr(module)
    with pytest.raises(TableExistsError, match="key_space"):
        Embedding(embedded, "t", **TWIN)
    options = {name: of for name, of in TABLE.items() if name != "initializer"}
    EmbeddingBag(embedded, "bare", **options)
    assert embedded.table("bare").initializer == Uniform(-(2**-10), 2**-10)
    EmbeddingBag(embedded, "bare", **options)


def test_weights_of_the_ids_from_zero(embedded):
    weights = torch.arange(12.0).reshape(3, 4)
    module = Embedding.from_pretrained(embedded, "t", weights, rows=None)
    assert embedded.table("t").rows == 2**64 - 1
    assert torch.equal(module(torch.tensor([2, 0])), weights[[2, 0]])
    assert not module(torch.tensor([-5, 3])).equal(weights[:2])


def test_checkpoints_go_back(server, tmp_path):
    from tests.serving import patient

    with patient(server.address) as store:
        module = Embedding(store, "t", **TABLE)
        train(module, tensor(IDS))
        before = store.table("t").lookup(IDS)
        module.save("first", directory=tmp_path)
        train(module, tensor(IDS))
        assert store.table("t").lookup(IDS).tobytes() != before.tobytes()
        module.load("first", directory=tmp_path)
        assert store.table("t").lookup(IDS).tobytes() == before.tobytes()
