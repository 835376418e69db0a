"""TorchRec's own KeyedJaggedTensor: the outputs and gradients of TorchRec's own modules."""

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")
with warnings.catch_warnings():  # it warns of what it does not find
    warnings.simplefilter("ignore")
    torchrec = pytest.importorskip("torchrec", reason="needs torchrec 1.9 and what it imports")

from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import (  # noqa: E402
    Bag,
    EmbeddingBagCollection,
    EmbeddingCollection,
    Ids,
)
from tests.frameworks.tables import DIM, ROWS, TABLE  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

KEYS, IDS = ["x", "z", "other", "y"], [3, 3, 7, 1, 49, 3, 2, 2, 9]
LENGTHS = [1, 2, 0, 2, 1, 0, 3, 0]  # two bags a key


def jagged(dtype: Any = torch.int64, weights: Any = None) -> Any:
    return torchrec.KeyedJaggedTensor.from_lengths_sync(
        keys=KEYS,
        values=torch.tensor(IDS, dtype=dtype),
        lengths=torch.tensor(LENGTHS, dtype=dtype),
        weights=weights,
    )


def rows_of(store: Store, name: str) -> Any:
    return torch.tensor(store.table(name).lookup(np.arange(ROWS), admit=False))


def configs(kind: Any, **options: Any) -> list[Any]:
    usual = {"embedding_dim": DIM, "num_embeddings": ROWS}
    return [
        kind(name="a", feature_names=["x", "y"], **usual),
        kind(name="b", feature_names=["z"], **usual, **options),
    ]


def assert_as_torchrec(store: Store, module: Any, plain: Any, features: Any, parts: Any) -> None:
    """Compare outputs by feature, and what one step by Sgd(1) does; `parts` makes tensors of what
    each of the modules returns."""
    weights = list(plain.parameters())
    before = [rows_of(store, name) for name in module.tables]
    for weight, rows in zip(weights, before, strict=True):
        weight.data.copy_(rows)
    found, wanted = module(features), parts(plain(features))
    assert list(found) == ["x", "y", "z"]
    for name, output in found.items():
        torch.testing.assert_close(output, wanted[name])
        output.square().sum().backward()
        wanted[name].square().sum().backward(retain_graph=True)
    module.step()
    for name, rows, weight in zip(module.tables, before, weights, strict=True):
        torch.testing.assert_close(rows - rows_of(store, name), weight.grad)


def bags(store: Store, mode: Any = "mean") -> EmbeddingBagCollection:
    tables = [Bag("a", features=["x", "y"], **TABLE), Bag("b", features=["z"], mode=mode, **TABLE)]
    return EmbeddingBagCollection(store, tables)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_bags_are_those_of_torchrec(store: Store, dtype: Any) -> None:
    config = configs(torchrec.EmbeddingBagConfig, pooling=torchrec.PoolingType.MEAN)
    plain = torchrec.EmbeddingBagCollection(tables=config)
    assert_as_torchrec(store, bags(store), plain, jagged(dtype), lambda kt: kt.to_dict())


def test_weighted_bags_are_those_of_torchrec(embedded: Store) -> None:
    config = configs(torchrec.EmbeddingBagConfig)
    plain = torchrec.EmbeddingBagCollection(tables=config, is_weighted=True)
    features = jagged(weights=torch.linspace(-1, 2, len(IDS)))
    assert_as_torchrec(embedded, bags(embedded, "sum"), plain, features, lambda kt: kt.to_dict())


def test_ids_are_those_of_torchrec(embedded: Store) -> None:
    tables = [Ids("a", features=["x", "y"], **TABLE), Ids("b", features=["z"], **TABLE)]
    module = EmbeddingCollection(embedded, tables)
    plain = torchrec.EmbeddingCollection(tables=configs(torchrec.EmbeddingConfig))
    assert_as_torchrec(
        embedded, module, plain, jagged(), lambda of: {n: t.values() for n, t in of.items()}
    )


def test_what_torchrec_made_of_a_tensor_is_taken_as_well(embedded: Store) -> None:
    module, whole = bags(embedded), jagged()
    wanted = module(whole)
    torch.testing.assert_close(module(whole.permute([3, 0, 1])), wanted)
    parts = whole.split([2, 2])
    torch.testing.assert_close(module(torchrec.KeyedJaggedTensor.concat(parts)), wanted)


def test_features_may_have_bags_of_their_own_number(embedded: Store) -> None:
    given = torchrec.KeyedJaggedTensor(
        keys=["x", "y", "z"],
        values=torch.tensor(IDS[:6]),
        lengths=torch.tensor([2, 1, 0, 1, 1, 1]),
        stride_per_key_per_rank=[[1], [3], [2]],
    )
    found = bags(embedded)(given)
    assert [len(output) for output in found.values()] == [1, 3, 2]
    torch.testing.assert_close(found["x"][0], rows_of(embedded, "a")[[3, 3]].sum(dim=0))
    torch.testing.assert_close(found["z"], rows_of(embedded, "b")[[49, 3]])


def test_a_loop_announces_what_a_tensor_has(embedded: Store) -> None:
    module = bags(embedded)
    for features in module.ahead([jagged(), jagged()], features=lambda batch: batch):
        sum(output.sum() for output in module(features).values()).backward()
        module.step()
    assert embedded.table("a").t == 2
