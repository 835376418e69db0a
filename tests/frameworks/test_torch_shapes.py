"""Arguments in Torch's shapes: the outputs and gradients of Torch's own modules."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import InvalidArgumentError  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import (  # noqa: E402
    Bag,
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingCollection,
    Ids,
)
from tests.frameworks.tables import DIM, ROWS, TABLE, rows_of  # noqa: E402


def weights_of(store: Store, name: str) -> Any:
    return torch.tensor(rows_of(store, name))


def assert_as_torch(module: Any, plain: Any, *arguments: Any) -> None:
    """Compare outputs, and what one step by Sgd(1) does, with those of a module of Torch."""
    (name,) = module.tables
    before = weights_of(module.store, name)
    plain.weight.data.copy_(before)
    found, wanted = module(*arguments), plain(*arguments)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted)
    weighting = torch.linspace(-1, 1, wanted.numel()).reshape(wanted.shape)
    (found * weighting).sum().backward()
    (wanted * weighting).sum().backward()
    module.step()
    torch.testing.assert_close(before - weights_of(module.store, name), plain.weight.grad)


IDS = torch.tensor([3, 3, 7, 1, 49, 3])
SHAPES = {
    "rows of equal length": (IDS.reshape(2, 3),),
    "offsets": (IDS, torch.tensor([0, 2, 5])),
    "int32": (IDS.int(), torch.tensor([0, 4], dtype=torch.int32)),
    "empty bags": (IDS, torch.tensor([0, 0, 6, 6])),
    "one sample": (torch.tensor([[9]]),),
    "no ids": (torch.empty(0, dtype=torch.int64), torch.tensor([0, 0])),
    "every second column": (torch.arange(24).reshape(4, 6)[:, ::2],),
    "transposed": (torch.arange(24).reshape(4, 6).T,),
    "every second id and offset": (torch.arange(12)[::2], torch.tensor([0, 9, 2, 9, 5, 9])[::2]),
}


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("arguments", SHAPES.values(), ids=SHAPES)
def test_bags_are_those_of_torch(embedded: Store, mode: Any, arguments: Any) -> None:
    module = EmbeddingBag(embedded, "t", **TABLE, mode=mode)
    assert_as_torch(module, torch.nn.EmbeddingBag(ROWS, DIM, mode=mode), *arguments)


def test_bags_are_pooled_as_torch_pools_them_where_nothing_is_said(embedded: Store) -> None:
    module = EmbeddingBag(embedded, "t", **TABLE)
    assert_as_torch(module, torch.nn.EmbeddingBag(ROWS, DIM), IDS.reshape(2, 3))


def test_offsets_may_have_the_last_one_too(embedded: Store) -> None:
    module = EmbeddingBag(embedded, "t", **TABLE, include_last_offset=True, mode="sum")
    plain = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum", include_last_offset=True)
    assert_as_torch(module, plain, IDS, torch.tensor([0, 1, 6]))


@pytest.mark.parametrize("ids", [IDS, IDS.reshape(3, 2).int(), torch.tensor(4), IDS[:0]])
def test_ids_of_any_shape_are_those_of_torch(store: Store, ids: Any) -> None:
    assert_as_torch(Embedding(store, "t", **TABLE), torch.nn.Embedding(ROWS, DIM), ids)


@pytest.mark.parametrize("arguments", [(IDS.reshape(2, 3), None), (IDS, torch.tensor([0, 0, 4]))])
def test_weights_of_ids_and_their_gradients_are_those_of_torch(
    embedded: Store, arguments: Any
) -> None:
    module = EmbeddingBag(embedded, "t", **TABLE, mode="sum")
    plain = torch.nn.EmbeddingBag(ROWS, DIM, mode="sum")
    ids, offsets = arguments
    pair = [torch.linspace(-1, 2, 6).reshape(ids.shape).requires_grad_() for _ in range(2)]
    plain.weight.data.copy_(weights_of(embedded, "t"))
    before = weights_of(embedded, "t")
    for used, weights in zip((module, plain), pair, strict=True):
        used(ids, offsets, weights).square().sum().backward()
    module.step()
    torch.testing.assert_close(pair[0].grad, pair[1].grad)
    torch.testing.assert_close(before - weights_of(embedded, "t"), plain.weight.grad)


def test_gradients_of_weights_pass_gradcheck_in_float64(embedded: Store) -> None:
    module = EmbeddingBag(embedded, "t", **TABLE, mode="sum")
    weights = torch.linspace(-1, 2, 6, dtype=torch.float64, requires_grad=True)
    offsets = torch.tensor([0, 2, 2])
    assert torch.autograd.gradcheck(lambda w: module(IDS, offsets, w), (weights,))
    apart = torch.linspace(-1, 2, 12, dtype=torch.float64)[::2].reshape(2, 3).T.requires_grad_()
    assert torch.autograd.gradcheck(lambda w: module(IDS.reshape(3, 2), None, w), (apart,))


def test_activations_come_in_the_dtype_that_is_asked_for(embedded: Store) -> None:
    module = EmbeddingBag(embedded, "t", **TABLE, dtype=torch.bfloat16, mode="sum")
    before = weights_of(embedded, "t")
    output = module(torch.tensor([[1, 2]]))
    assert output.dtype == torch.bfloat16
    output.sum().backward()
    module.step()
    assert (before - weights_of(embedded, "t"))[[1, 2]].allclose(torch.ones(2, DIM))


class Jagged:
    """What TorchRec's KeyedJaggedTensor says of itself."""

    def __init__(self, keys: list[str], values: Any, lengths: Any, weights: Any = None) -> None:
        self._keys, self._values, self._lengths, self._weights = keys, values, lengths, weights

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> Any:
        return self._values

    def lengths(self) -> Any:
        return self._lengths

    def weights_or_none(self) -> Any:
        return self._weights


class JaggedByOffsets(Jagged):
    def offsets(self) -> Any:
        return torch.cat([torch.zeros(1, dtype=torch.int64), self._lengths.cumsum(0)])


def collection(store: Store) -> EmbeddingBagCollection:
    a = Bag("a", features=["x", "y"], **TABLE)
    b = Bag("b", features=["z"], mode="mean", **TABLE)
    return EmbeddingBagCollection(store, [a, b])


X, Y, Z = (IDS, torch.tensor([0, 1, 6])), (IDS[:3], torch.tensor([0, 3, 3])), IDS[:4].reshape(2, 2)


@pytest.mark.parametrize("kind", [Jagged, JaggedByOffsets])
def test_a_keyed_jagged_tensor_is_the_mapping_of_its_features(embedded: Store, kind: Any) -> None:
    module = collection(embedded)
    lengths = torch.tensor([1, 5, 2, 2, 3, 0, 1, 0])
    other = torch.tensor([9])
    given = kind(["x", "z", "y", "other"], torch.cat([IDS, Z.reshape(-1), IDS[:3], other]), lengths)
    wanted = module(
        {
            "x": (IDS, torch.tensor([0, 1])),
            "y": (IDS[:3], torch.tensor([0, 3])),
            "z": Z,
            "other": None,
        }
    )
    found = module(given)
    assert list(found) == ["x", "y", "z"]
    torch.testing.assert_close(found, wanted)


def test_weights_of_a_keyed_jagged_tensor_are_used(embedded: Store) -> None:
    module = EmbeddingBag(embedded, "a", **TABLE, mode="sum")
    of_a = EmbeddingBagCollection(embedded, [Bag("a", features=["x"], **TABLE)])
    weights = torch.tensor([1.0, 2, 3])
    given = Jagged(["x"], IDS[:3], torch.tensor([1, 2]), weights)
    wanted = module(IDS[:3], torch.tensor([0, 1]), weights)
    torch.testing.assert_close(of_a(given)["x"], wanted)


def test_one_id_a_bag_needs_no_second_dimension(embedded: Store) -> None:
    module = EmbeddingBagCollection(embedded, [Bag("a", features=["x"], **TABLE)])
    torch.testing.assert_close(module({"x": IDS}), module({"x": IDS[:, None]}))


def test_ids_of_several_tables_come_by_feature(store: Store) -> None:
    tables = [Ids("a", features=["x", "y"], **TABLE), Ids("b", features=["z"], **TABLE)]
    module = EmbeddingCollection(store, tables)
    found = module({"z": IDS.reshape(2, 3), "x": IDS, "y": torch.tensor([[0]])})
    assert {name: tuple(rows.shape) for name, rows in found.items()} == {
        "x": (6, DIM),
        "y": (1, 1, DIM),
        "z": (2, 3, DIM),
    }
    torch.testing.assert_close(found["z"].detach(), weights_of(store, "b")[IDS.reshape(2, 3)])
    jagged = module(Jagged(["x", "y", "z"], IDS, torch.tensor([1, 2, 0, 1, 1, 1])))
    torch.testing.assert_close(jagged["z"].detach(), weights_of(store, "b")[IDS[4:]])


WRONG = {
    "a float": (torch.tensor([[1.0]]),),
    "a list": ([1, 2],),
    "three dimensions": (torch.zeros(1, 1, 1, dtype=torch.int64),),
    "no offsets": (IDS,),
    "offsets of bags of equal length": (Z, torch.tensor([0, 2])),
    "offsets that fall": (IDS, torch.tensor([0, 4, 2])),
    "offsets that begin late": (IDS, torch.tensor([1, 4])),
    "weights of another shape": (Z, None, torch.ones(4)),
    "weights of another dtype": (Z, None, torch.ones(2, 2, dtype=torch.int64)),
    "an id beyond the table": (torch.tensor([[ROWS]]),),
}


@pytest.mark.parametrize("arguments", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused(embedded: Store, arguments: Any) -> None:
    module = EmbeddingBag(embedded, "t", **TABLE, mode="sum")
    with pytest.raises(InvalidArgumentError, match="'t'"):
        module(*arguments)


@pytest.mark.parametrize(
    "tables",
    [
        [],
        [Bag("a", features=["x"], **TABLE), Bag("a", features=["y"], **TABLE | {"dim": 5})],
        [Bag("a", features=["x"], **TABLE), Ids("a", features=["x"], **TABLE)],
        [Bag("a", features=["x", "x"], **TABLE)],
        [Bag("a", features=["x", "x@b"], **TABLE), Bag("b", features=["x"], **TABLE)],
    ],
)
def test_tables_that_contradict_each_other_are_refused(embedded: Store, tables: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        EmbeddingBagCollection(embedded, tables)
    assert embedded.tables() == []


def test_features_of_a_table_are_a_list() -> None:
    with pytest.raises(InvalidArgumentError, match="list of names"):
        Bag("a", features="x", **TABLE)
