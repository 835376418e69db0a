"""`from_pretrained`, beside that of `torch.nn`."""

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import InvalidArgumentError, Sgd  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.frameworks import pretrained  # noqa: E402
from embstore_client.torch import Embedding, EmbeddingBag  # noqa: E402

IDS = torch.tensor([[1, 2, 1], [8, 0, 3]])


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(pretrained, "_BYTES", 4 * 4 * 5)  # of 5 rows
    return torch.randn(9, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("freeze", [True, False])
def test_rows_and_training_are_torchs(store: Store, weights: Any, freeze: bool) -> None:
    twin = torch.nn.Embedding.from_pretrained(weights.clone(), freeze=freeze)
    module = Embedding.from_pretrained(store, "t", weights, freeze=freeze, optimizer=Sgd(0.5))
    dense = torch.nn.Linear(4, 1)
    torch.testing.assert_close(module(IDS), twin(IDS), rtol=0, atol=0)
    for rows in (module(IDS), twin(IDS)):
        dense(rows.square()).sum().backward()
    done = module.step()
    assert (done is None) == freeze
    if not freeze:
        torch.optim.SGD(twin.parameters(), lr=0.5).step()
    torch.testing.assert_close(module(IDS), twin(IDS))


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_bags_are_torchs_whatever_the_weights_are(
    store: Store, weights: Any, mode: Any, dtype: Any
) -> None:
    given = torch.nn.Parameter(weights.T.contiguous().T.to(dtype))
    twin = torch.nn.EmbeddingBag.from_pretrained(given.detach().float(), mode=mode)
    module = EmbeddingBag.from_pretrained(store, "t", given, mode=mode)
    torch.testing.assert_close(module(IDS), twin(IDS))
    assert module.frozen == {"t"}


def test_what_is_there_is_not_written_again(store: Store, weights: Any) -> None:
    Embedding.from_pretrained(store, "t", weights)
    command = store.command
    Embedding.from_pretrained(store, "t", weights)
    assert store.command == command + 1  # which finds the table
    weights[7] += 1
    Embedding.from_pretrained(store, "t", weights)
    assert store.command == command + 3
    np.testing.assert_array_equal(store.table("t").lookup(np.arange(9)), weights.numpy())


def test_a_table_that_was_trained_keeps_its_rows_and_says_so(store: Store, weights: Any) -> None:
    module = Embedding.from_pretrained(store, "t", weights, freeze=False, optimizer=Sgd(0.5))
    module(IDS).sum().backward()
    module.step()
    digest = store.table("t").digest()
    with pytest.warns(UserWarning, match=r"'t' keeps its rows, which 1 updates have trained"):
        Embedding.from_pretrained(store, "t", weights, freeze=False, optimizer=Sgd(0.5))
    assert store.table("t").digest() == digest


def test_there_may_be_more_rows_than_weights(store: Store, weights: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = Embedding.from_pretrained(store, "t", weights, rows=20)
        store.table("t").grow(30)
        Embedding.from_pretrained(store, "t", weights, rows=30)
    assert torch.equal(module(torch.arange(9)), weights)
    assert module(torch.tensor([19])).shape == (1, 4)


def test_wrong_arguments_are_refused(embedded: Store, weights: Any) -> None:
    for wrong in (weights[0], weights.numpy(), [[1.0]]):
        with pytest.raises(InvalidArgumentError, match=r"tensor of shape \(rows, dim\)"):
            Embedding.from_pretrained(embedded, "t", wrong)
    with pytest.raises(InvalidArgumentError, match="expected an optimizer"):
        Embedding.from_pretrained(embedded, "t", weights, freeze=False)
    assert embedded.tables() == []
