"""What an error tells a trainer in Torch to do, done as its text says: then it goes on.

What is said of loops is in `test_loops`, of scalers and clipping in `test_torch_scaling`.
"""

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from embstore import InvalidArgumentError, Sgd  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.torch import (  # noqa: E402
    Bag,
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
)

IDS = torch.tensor([[1, 2]])
OPTIONS: dict[str, Any] = {"dim": 4, "rows": 9, "optimizer": Sgd(0.1)}


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidArgumentError) as refused:
        call()
    return str(refused.value)


def told(tensor: Any, text: str) -> Any:
    """Return a tensor after the method that a text says to call."""
    ((name),) = re.findall(r"pass its \.(\w+)\(\)", text)
    return getattr(tensor, name)()


def train(module: Any, ids: Any = IDS) -> None:
    module(ids).square().sum().backward()
    module.step()


@pytest.mark.parametrize("keys", [torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]).half()])
def test_a_table_is_given_tensors_that_it_takes(embedded: Store, keys: Any) -> None:
    Embedding(embedded, "t", **OPTIONS)
    table = embedded.table("t")
    keys = told(keys, refusal(lambda: table.lookup(keys)))
    for rows in (
        torch.ones(2, 4, requires_grad=True),
        torch.ones(2, 4, dtype=torch.float64),
        torch.ones(2, 4, dtype=torch.bfloat16),
    ):
        table.update(keys, told(rows, refusal(lambda rows=rows: table.update(keys, rows))))
    assert table.t == 3


def test_a_module_that_arrives_without_its_store_is_attached(embedded: Store) -> None:
    arrived = pickle.loads(pickle.dumps(Embedding(embedded, "t", **OPTIONS)))
    (name,) = re.findall(r"by (\w+)\(store\)", refusal(lambda: arrived(IDS)))
    getattr(arrived, name)(embedded)
    train(arrived)
    assert embedded.table("t").t == 1


def test_a_scale_is_a_power_of_two(embedded: Store) -> None:
    module, dense = EmbeddingBag(embedded, "t", **OPTIONS, mode="sum"), torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(dense.parameters(), lr=0.1)

    def step(**how: float) -> None:
        scaler = torch.amp.GradScaler("cpu", **how)
        scaler.scale(dense(module(IDS)).sum()).backward()
        scaler.step(optimizer)
        module.step(scaler)
        scaler.update()

    text = refusal(lambda: step(init_scale=3.0))
    (names,) = re.findall(r"as (\w+), (\w+) and (\w+)", text)
    module.zero_grad()
    step(**dict(zip(names, (4.0, 2.0, 0.5), strict=True)))
    assert embedded.table("t").t == 1


def test_numbers_of_numpy_are_saved_as_those_of_python(embedded: Store, tmp_path: Any) -> None:
    class Part:
        def __init__(self, best: Any) -> None:
            self.best = best

        def state_dict(self) -> dict[str, Any]:
            return {"best": self.best}

    module, best = Embedding(embedded, "t", **OPTIONS), np.float64(0.5)
    text = refusal(lambda: module.save("one", directory=tmp_path, part=Part(best)))
    (convert,) = re.findall(r"by (float)\(\)", text)
    assert convert == "float"
    module.save("one", directory=tmp_path, part=Part(float(best)))


def test_gradients_of_a_batch_that_is_given_up_are_forgotten(embedded: Store) -> None:
    module = EmbeddingBag(embedded, "t", **OPTIONS, mode="sum")
    module(IDS).sum().backward()
    loop: Any = module.ahead([IDS], features=lambda ids: ids)
    (name,) = re.findall(r"(\w+)\(\) discards the gradients", refusal(lambda: next(loop)))
    getattr(module, name)()
    for ids in module.ahead([IDS], features=lambda ids: ids):
        train(module, ids)
    assert embedded.table("t").t == 1


def test_a_loop_within_a_loop_waits_for_its_end(embedded: Store) -> None:
    module = EmbeddingBag(embedded, "t", **OPTIONS, mode="sum")
    for ids in module.ahead([IDS], features=lambda ids: ids):
        train(module, ids)
        text = refusal(lambda: next(iter(module.ahead([IDS], features=lambda own: own))))
        assert "a loop within a loop needs another module" in text
    for ids in module.ahead([IDS], features=lambda ids: ids):
        train(module, ids)
    assert embedded.table("t").t == 2


def test_parts_that_were_saved_are_the_parts_that_are_loaded(
    embedded: Store, tmp_path: Any
) -> None:
    module, dense = Embedding(embedded, "t", **OPTIONS), torch.nn.Linear(4, 1)
    module.save("one", directory=tmp_path, dense=dense)
    other = copy.deepcopy(dense)
    text = refusal(lambda: module.load("one", directory=tmp_path, model=other))
    ((name,),) = [re.findall(r"expected the parts \['(\w+)'\]", text)]
    assert module.load("one", directory=tmp_path, **{name: other}) == 0


def test_an_address_in_place_of_a_store_is_told_what_makes_one(embedded: Store) -> None:
    for wrong in ("127.0.0.1:50051", None, embedded.create_table):
        text = refusal(lambda wrong=wrong: Embedding(wrong, "t", **OPTIONS))
        assert "embstore.connect(address) or embstore.open(directory)" in text


def test_one_table_in_place_of_a_list_is_told_so(embedded: Store) -> None:
    bag = Bag("t", features=["x"], **OPTIONS)
    assert "expected a list of tables" in refusal(lambda: EmbeddingBagCollection(embedded, bag))
    assert EmbeddingBagCollection(embedded, [bag]).tables == {"t": bag}
