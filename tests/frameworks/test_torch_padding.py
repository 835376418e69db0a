"""Padding as Torch's own modules have it: the same outputs, and rows that are trained alike."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import Adam, InvalidArgumentError  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import Bag, Embedding, EmbeddingBag, EmbeddingBagCollection  # noqa: E402
from tests.frameworks.tables import DIM, ROWS, TABLE, rows_of  # noqa: E402

PAD = 7
IDS = torch.tensor([[3, PAD, 3, 9], [PAD, PAD, PAD, PAD], [PAD, 4, 9, PAD]])
FLAT = IDS.reshape(-1), torch.tensor([0, 5, 5])
MODES = ["sum", "mean"]


def plain_of(store: Store, kind: Any, **options: Any) -> Any:
    """Return Torch's module with the rows of table "t", and that of padding zeros, as Torch has
    it."""
    plain = kind(ROWS, DIM, padding_idx=PAD, **options)
    plain.weight.data.copy_(torch.tensor(rows_of(store, "t")))
    plain.weight.data[PAD] = 0
    return plain


def assert_trained_alike(module: Any, plain: Any, given: Any, of_plain: Any) -> None:
    """Compare outputs, and what one step by Sgd(1) takes off the rows."""
    before = torch.tensor(rows_of(module.store, "t"))
    found, wanted = module(*given), plain(*of_plain)
    torch.testing.assert_close(found, wanted)
    for output in (found, wanted):
        (output * torch.linspace(-1, 1, output.numel()).reshape(output.shape)).sum().backward()
    module.step()
    torch.testing.assert_close(before - torch.tensor(rows_of(module.store, "t")), plain.weight.grad)
    assert module.store.table("t").t == 1


@pytest.fixture(params=["padding_idx", "-1"])
def padded(request: pytest.FixtureRequest) -> Any:
    """Return the option of a module, and ids with its padding."""
    if request.param == "-1":
        return {}, lambda ids: torch.where(ids == PAD, -1, ids)
    return {"padding_idx": PAD}, lambda ids: ids


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_of_padding_are_zeros_and_not_trained(store: Store, padded: Any, dtype: Any) -> None:
    option, with_padding = padded
    module = Embedding(store, "t", **TABLE, **option)
    plain = plain_of(store, torch.nn.Embedding)
    assert_trained_alike(module, plain, (with_padding(IDS).to(dtype),), (IDS,))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("arguments", [(IDS,), FLAT], ids=["one length", "offsets"])
def test_bags_leave_padding_out_of_sums_and_of_the_count_of_means(
    embedded: Store, padded: Any, arguments: Any, mode: Any
) -> None:
    option, with_padding = padded
    module = EmbeddingBag(embedded, "t", **TABLE, **option, mode=mode)
    plain = plain_of(embedded, torch.nn.EmbeddingBag, mode=mode)
    given = with_padding(arguments[0]), *arguments[1:]
    assert_trained_alike(module, plain, given, arguments)


def test_weights_of_padding_are_not_used_and_have_no_gradient(embedded: Store, padded: Any) -> None:
    option, with_padding = padded
    module = EmbeddingBag(embedded, "t", **TABLE, **option, mode="sum")
    plain = plain_of(embedded, torch.nn.EmbeddingBag, mode="sum")
    pair = [torch.linspace(-1, 2, 12).reshape(3, 4).requires_grad_() for _ in range(2)]
    assert_trained_alike(module, plain, (with_padding(IDS), None, pair[0]), (IDS, None, pair[1]))
    torch.testing.assert_close(pair[0].grad, pair[1].grad)
    assert not pair[0].grad[IDS == PAD].any()


def test_a_batch_of_padding_alone_reads_and_trains_no_row(store: Store) -> None:
    module = Embedding(store, "t", **TABLE, padding_idx=PAD)
    before = rows_of(store, "t")
    for given in module.ahead([torch.tensor([[-1, PAD]])] * 2, features=lambda ids: ids):
        output = module(given)
        assert not output.any()
        output.sum().backward()
        module.step()
    np.testing.assert_array_equal(rows_of(store, "t"), before)


def test_padding_in_a_loop_is_that_of_plain_calls(store: Store) -> None:
    batches = [IDS, torch.where(IDS == PAD, -1, IDS), IDS[:, 1:]]

    def table_of(name: str) -> EmbeddingBag:
        options = TABLE | {"optimizer": Adam(0.1), "seed": 5}
        return EmbeddingBag(store, name, **options, mode="mean", padding_idx=PAD)

    announced, plain = table_of("a"), table_of("b")
    for ids in announced.ahead(batches, features=lambda ids: ids):
        announced(ids).square().sum().backward()
        announced.step()
    for ids in batches:
        plain(ids).square().sum().backward()
        plain.step()
    np.testing.assert_array_equal(rows_of(store, "a"), rows_of(store, "b"))
    assert store.table("a").t == 3


@pytest.mark.parametrize("padding_idx", [-1, ROWS])
def test_padding_beyond_the_table_is_refused(embedded: Store, padding_idx: int) -> None:
    with pytest.raises(InvalidArgumentError, match="an id of -1 is padding without it"):
        Embedding(embedded, "t", **TABLE, padding_idx=padding_idx)
    assert not Embedding(embedded, "t", **TABLE)(torch.tensor([-1])).any()


def test_other_negative_ids_are_refused(embedded: Store) -> None:
    module = EmbeddingBagCollection(embedded, [Bag("t", features=["x"], **TABLE, padding_idx=0)])
    with pytest.raises(InvalidArgumentError, match="found -2"):
        module({"x": torch.tensor([[1, -2]])})


# Nested tensors

NESTED = [torch.tensor([3, 7, 3]), torch.tensor([4]), torch.tensor([], dtype=torch.int64)]


def nested(parts: Any) -> Any:
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


@pytest.mark.parametrize("mode", MODES)
def test_nested_tensors_are_bags(embedded: Store, mode: Any) -> None:
    module = EmbeddingBag(embedded, "t", **TABLE, mode=mode, padding_idx=PAD)
    plain = plain_of(embedded, torch.nn.EmbeddingBag, mode=mode)
    flat = torch.cat(NESTED), torch.tensor([0, 3, 4])
    assert_trained_alike(module, plain, (nested(NESTED),), flat)


def test_nested_tensors_of_ids_come_back_nested(store: Store) -> None:
    module = Embedding(store, "t", **TABLE, padding_idx=PAD)
    plain = plain_of(store, torch.nn.Embedding)
    before, ids = torch.tensor(rows_of(store, "t")), nested(NESTED)
    for given in module.ahead([ids], features=lambda ids: ids):
        found, wanted = module(given), plain(given)
        torch.testing.assert_close(found.values(), wanted.values())
        assert (found + wanted).shape == (3, wanted.shape[1], DIM)  # of the same lengths
        for output in (found, wanted):
            output.values().square().sum().backward()
        module.step()
    torch.testing.assert_close(before - torch.tensor(rows_of(store, "t")), plain.weight.grad)


def test_nested_tensors_may_be_weighted_and_narrowed(embedded: Store) -> None:
    module = EmbeddingBag(embedded, "t", **TABLE, mode="sum")
    weights = [torch.linspace(-1, 1, len(ids)) for ids in NESTED]
    found = module(nested(NESTED), None, nested(weights))
    wanted = module(torch.cat(NESTED), torch.tensor([0, 3, 4]), torch.cat(weights))
    torch.testing.assert_close(found, wanted)
    lengths = torch.tensor([2, 1, 3])
    narrowed = torch.nested.narrow(
        torch.arange(12).reshape(3, 4), 1, torch.tensor([0, 1, 0]), lengths, layout=torch.jagged
    )
    wanted = module(torch.tensor([0, 1, 5, 8, 9, 10]), torch.tensor([0, 2, 3]))
    torch.testing.assert_close(module(narrowed), wanted)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_other_nested_tensors_are_refused(embedded: Store) -> None:
    bag, ids = EmbeddingBag(embedded, "t", **TABLE, mode="sum"), Embedding(embedded, "t", **TABLE)
    strided = torch.nested.nested_tensor(NESTED[:2])
    deep = nested([torch.ones(2, 2, dtype=torch.int64)])
    for module in (bag, ids):
        for wrong in (strided, deep):
            with pytest.raises(InvalidArgumentError, match=r"layout=torch\.jagged"):
                module(wrong)
    with pytest.raises(InvalidArgumentError, match="no offsets"):
        bag(nested(NESTED), torch.tensor([0]))
