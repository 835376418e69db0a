"""What Torch users do by habit is honoured, or a warning says that it has no effect."""

import copy
import pickle
import re
import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

import embstore  # noqa: E402
from embstore import Constant, InvalidArgumentError, Sgd  # noqa: E402
from embstore.handles.store import Store  # noqa: E402
from embstore_client.frameworks.gradients import FORWARDS_WITHOUT_STEP  # noqa: E402
from embstore_client.torch import Embedding, saving  # noqa: E402

IDS = torch.tensor([1, 2])


def module_of(store: Store, rate: float = 0.5) -> Embedding:
    return Embedding(store, "t", dim=2, rows=9, optimizer=Sgd(rate), initializer=Constant(1.0))


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> None:
    """States have said by now that they have no rows."""
    monkeypatch.setattr(saving, "_warned", {"t"})


def train(module: Embedding, ids: Any = IDS) -> None:
    module(ids).sum().backward()
    module.step()


def test_a_frozen_module_is_not_trained_until_it_is_thawed(embedded: Store) -> None:
    module = module_of(embedded)
    dense = torch.nn.Linear(2, 1)
    assert module.requires_grad_(False) is module
    assert "trainable=False" in repr(module)
    digest = embedded.table("t").digest()
    for _ in module.ahead([IDS, IDS], features=lambda ids: ids):
        rows = module(IDS)
        assert not rows.requires_grad
        dense(rows).sum().backward()
        module.step()
    assert module.step() is None
    assert (embedded.table("t").t, embedded.table("t").digest()) == (0, digest)
    train(copy.deepcopy(module).requires_grad_())
    assert embedded.table("t").t == 1


def test_another_learning_rate_than_the_tables_warns_and_repr_has_the_tables(
    embedded: Store,
) -> None:
    module_of(embedded, 0.5)
    with pytest.warns(UserWarning, match=r"'t'.* keeps .* 0\.5; .* 0\.1, .*learning_rate = 0\.1"):
        module = module_of(embedded, 0.1)
    assert "learning_rate=0.5" in repr(module)
    embedded.table("t").learning_rate = 0.25
    assert "learning_rate=0.25" in repr(module)
    embedded.close()
    assert "learning_rate=0.1" in repr(module)


def test_a_step_that_is_forgotten_warns_once(embedded: Store) -> None:
    module = module_of(embedded)
    for _ in range(FORWARDS_WITHOUT_STEP - 1):
        module(IDS).sum().backward()
    module.step()
    for _ in range(FORWARDS_WITHOUT_STEP - 1):
        module(IDS).sum().backward()
    with pytest.warns(UserWarning, match=r"16 forwards .* step\(\) was not called"):
        module(IDS).sum().backward()
    for _ in range(2 * FORWARDS_WITHOUT_STEP):
        module(IDS).sum().backward()
    module.zero_grad()


def test_gradients_that_are_left_at_the_end_warn(embedded: Store) -> None:
    module = module_of(embedded)
    module(IDS).sum().backward()
    with pytest.warns(UserWarning, match=r"tables t were not applied.* step\(\) was not called"):
        del module
    train(module_of(embedded))


def test_a_named_loop_that_goes_on_warns_unless_its_place_is_known(embedded: Store) -> None:
    def loop(module: Embedding, **session: Any) -> None:
        for ids in module.ahead([IDS] * 3, features=lambda ids: ids, name="job", **session):
            train(module, ids)

    first = module_of(embedded)
    loop(first)
    loop(first)  # another epoch of the same process
    assert first.last_step == 6
    with pytest.warns(UserWarning, match="'job' goes on after step 6.*resume=True"):
        loop(module_of(embedded))
    loop(module_of(embedded), resume=False)
    assert embedded.table("t").t == 12


def test_a_state_without_rows_says_so_once(
    embedded: Store, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "_warned", set())
    module = module_of(embedded)
    model = torch.nn.Sequential(module, torch.nn.Linear(2, 1))
    copy.deepcopy(model)
    torch.optim.swa_utils.AveragedModel(model)
    module.save("kept", directory=tmp_path, model=model)  # its rows are in the checkpoint
    with pytest.warns(UserWarning, match=r"no rows of the tables t: .*save\(label"):
        state = model.state_dict()
    assert state.keys() == {"0._extra_state", "1.weight", "1.bias"}
    model.load_state_dict(state)


def test_a_state_is_compared_with_the_rows_that_it_is_loaded_with(
    embedded: Store, tmp_path: Any, warned: None
) -> None:
    module = module_of(embedded)
    model = torch.nn.Sequential(module, torch.nn.Linear(2, 1))
    train(module)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.load_state_dict(state)
        copy.deepcopy(model).load_state_dict(state)
        module.save("kept", directory=tmp_path, model=model)
    train(module)
    with pytest.warns(UserWarning, match=r"rows of 't' \(t 1, here 2\) are not .* by load\(label"):
        model.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.load("kept", directory=tmp_path, model=model)
        model.load_state_dict(state)
    with embstore.open(tmp_path / "other", device="cpu", cache_bytes=1 << 20) as other:
        elsewhere = torch.nn.Sequential(module_of(other), torch.nn.Linear(2, 1))
        with pytest.warns(UserWarning, match=r"\(t 1, here 0\) .*, of another store"):
            elsewhere.load_state_dict(state)


def test_states_may_be_averaged_and_moved_as_tensors(embedded: Store, warned: None) -> None:
    module = module_of(embedded)
    states = []
    for _ in range(11):
        states.append(module.state_dict())
        train(module)
    total = sum(state["_extra_state"] for state in states)  # all of one length
    with pytest.warns(UserWarning, match="t unknown, here 11"):
        module.load_state_dict({"_extra_state": total // 11})
    module.load_state_dict({"_extra_state": module.state_dict()["_extra_state"].float()})
    averaged = torch.optim.swa_utils.AveragedModel(module)
    averaged.load_state_dict(averaged.state_dict())


def test_a_module_that_is_not_connected_has_a_state(embedded: Store, warned: None) -> None:
    state = module_of(embedded).state_dict()
    arrived = pickle.loads(pickle.dumps(module_of(embedded)))
    arrived.load_state_dict(state)
    arrived.attach(embedded)
    arrived.load_state_dict(pickle.loads(pickle.dumps(arrived)).state_dict())
    embedded.close()
    arrived.load_state_dict(state)
    arrived.state_dict()


def test_a_gradient_that_is_not_finite_is_skipped_as_the_refusal_says(embedded: Store) -> None:
    module = module_of(embedded)
    (module(IDS) * float("nan")).sum().backward()
    with pytest.raises(InvalidArgumentError, match='on_nonfinite="skip"'):
        module.step()
    done = module.step(on_nonfinite="skip")
    assert done is not None and done.skipped
    np.testing.assert_array_equal(embedded.table("t").lookup([1, 2]), np.ones((2, 2)))


def test_a_module_that_is_trained_as_documented_warns_of_nothing(embedded: Store) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3 * FORWARDS_WITHOUT_STEP):
            train(module_of(embedded))


def test_a_weight_is_told_where_it_is(embedded: Store) -> None:
    module = module_of(embedded)
    assert not hasattr(module, "weight") and not hasattr(module, "bias")
    with pytest.raises(AttributeError, match=r"Embedding has no weight: .*the store") as refused:
        _ = module.weight
    (hint,) = re.findall(r"in the store: (store.*\.lookup\(ids\))", str(refused.value))
    rows = eval(hint, {"store": embedded, "ids": [1, 2]})
    hidden = torch.ones(3, 2)
    tied = hidden @ module(torch.arange(9)).T
    assert tied.shape == (3, 9)
    np.testing.assert_array_equal(module(IDS).detach(), rows)
    tied.sum().backward()
    module.step()
    assert (embedded.table("t").lookup(range(9)) == 1.0 - 0.5 * 3).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.float32])
def test_a_model_that_is_brought_to_a_dtype_takes_its_rows_there(
    embedded: Store, dtype: Any
) -> None:
    dense = torch.nn.Linear(2, 1)
    model = torch.nn.Sequential(module_of(embedded), dense).to(dtype)
    own = torch.nn.Embedding.from_pretrained(torch.ones(9, 2), freeze=False)
    wanted = torch.nn.Sequential(own, copy.deepcopy(dense)).to(dtype)
    found = model.to("cpu")(IDS)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted(IDS))
    for output in (found, wanted(IDS)):
        output.sum().backward()
    model[0].step()
    rows = torch.from_numpy(embedded.table("t").lookup(IDS))
    torch.testing.assert_close(1.0 - rows, 0.5 * own.weight.grad[IDS].float())
    assert model.float()(IDS).dtype == torch.float32
