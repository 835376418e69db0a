"""Loops that were left, loops beside each other, and loops that go on: what is refused or warned of
says what to do, and that is done here."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embstore import EmbstoreError, InvalidArgumentError, TableHeldError
from embstore.handles.store import Store


@pytest.fixture(params=["torch", "keras", "jax"])
def on(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param, reason=f"needs {request.param}")
    return importlib.import_module(f"tests.frameworks.on_{request.param}").Adapter()


WITH_MODULES = pytest.mark.parametrize("on", ["torch", "keras"], indirect=True)


def refusal(call: Callable[[], object], kind: type[EmbstoreError] = InvalidArgumentError) -> str:
    with pytest.raises(kind) as refused:
        call()
    return str(refused.value)


def begun(on: Any, layer: Any, **how: Any) -> Any:
    """Return a loop that was left behind its first step, as by `break`."""
    ids = on.ids([[1, 2]])
    loop = on.ahead(layer, [ids] * 9, **how)
    for batch in loop:
        trained(on, layer, batch)
        break
    return loop


def trained(on: Any, layer: Any, ids: Any) -> None:
    on.back_of(layer, ids)
    layer.step()


def close_as_told(text: str, loop: Any) -> None:
    (hint,) = re.findall(r"(loop\.close\(\))", text)
    eval(hint, {"loop": loop})


NAMED = pytest.mark.parametrize("name", [None, "job"], ids=["no name", "named"])


@NAMED
def test_a_loop_that_was_left_is_closed_before_the_next(store: Store, on: Any, name: Any) -> None:
    layer, how = on.one_table(store), {"name": name, "resume": None if name is None else False}
    loop = begun(on, layer, **how)
    close_as_told(refusal(lambda: next(on.ahead(layer, [on.ids([[1]])], **how))), loop)
    for batch in on.ahead(layer, [on.ids([[1, 2]])], **how):
        trained(on, layer, batch)
    assert store.table("t").t == 2


def test_a_loop_that_was_left_is_closed_before_load(
    embedded: Store, on: Any, tmp_path: Path
) -> None:
    layer = on.one_table(embedded)
    layer.save("one", directory=tmp_path)
    loop = begun(on, layer)
    text = refusal(lambda: layer.load("one", directory=tmp_path), TableHeldError)
    close_as_told(text, loop)
    layer.load("one", directory=tmp_path)
    assert embedded.table("t").t == 0


@WITH_MODULES
def test_a_loop_that_was_left_is_closed_before_a_forward(embedded: Store, on: Any) -> None:
    layer, ids = on.one_table(embedded), on.ids([[1, 2]])
    loop = begun(on, layer)
    close_as_told(refusal(lambda: on.call(layer, ids)), loop)
    trained(on, layer, ids)
    assert embedded.table("t").t == 2


@NAMED
def test_a_loop_of_another_module_on_the_table_is_closed_first(
    store: Store, on: Any, name: Any
) -> None:
    first, second = on.one_table(store), on.one_table(store)
    loop = begun(on, first, name=name)
    text = refusal(lambda: next(on.ahead(second, [on.ids([[1, 2]])])), TableHeldError)
    assert "shared=True" not in text
    close_as_told(text, loop)
    for batch in on.ahead(second, [on.ids([[1, 2]])]):
        trained(on, second, batch)
    assert store.table("t").t == 2


def test_loops_of_two_modules_may_share_a_table(embedded: Store, on: Any) -> None:
    first, second = on.one_table(embedded), on.one_table(embedded)
    batches = [on.ids([[1, 2]]), on.ids([[3, 4]])]
    loops = [on.ahead(layer, batches, shared=True) for layer in (first, second)]
    for a, b in zip(*loops, strict=True):
        trained(on, first, a)
        trained(on, second, b)
    assert embedded.table("t").t == 4


@WITH_MODULES
def test_a_step_outside_the_loop_that_holds_its_table_waits_for_its_end(
    store: Store, on: Any
) -> None:
    first, second, ids = on.one_table(store), on.one_table(store), on.ids([[1, 2]])
    loop = begun(on, first)
    on.back_of(second, ids)
    text = refusal(second.step, TableHeldError)
    assert "make one module" in text and "shared=True" not in text
    close_as_told(text, loop)
    second.step()
    assert store.table("t").t == 2


def test_a_loop_in_the_loader_of_another_stands_beside_it_instead(embedded: Store, on: Any) -> None:
    first, second = (on.one_table(embedded, name) for name in "ab")
    batches = [on.ids([[number]]) for number in range(6)]

    def within() -> None:
        for _ in on.ahead(first, on.ahead(second, batches)):
            raise AssertionError("no step")

    (hint,) = re.findall(r"for a, b in (zip\(.*\))$", refusal(within))

    class Told:
        def __init__(self, layer: Any) -> None:
            self.layer = layer

        def ahead(self, batches: Any, _: Any) -> Any:
            return on.ahead(self.layer, batches)

    told = {"first": Told(first), "second": Told(second), "batches": batches}
    for a, b in eval(hint, told):
        assert np.array_equal(a, b)
        trained(on, first, a)
        trained(on, second, b)
    assert embedded.table("a").t == embedded.table("b").t == 6
    assert embedded.table("a").lookup(range(9)).shape == (9, 4)


@WITH_MODULES
def test_what_only_looks_says_so_as_told(embedded: Store, on: Any) -> None:
    layer, ids = on.one_table(embedded), on.ids([[1, 2]])
    for batch in on.ahead(layer, [ids]):
        before = refusal(lambda: on.call(layer, on.ids([[7]])))
        trained(on, layer, batch)
        behind = refusal(lambda batch=batch: on.call(layer, batch))
        for text in (before, behind):
            (what,) = re.findall(
                r"to read rows only, call (eval\(\) of the module|with training=False)", text
            )
            assert what
        on.call(layer, on.ids([[7]]), training=False)


def train(on: Any, layer: Any, count: int, **how: Any) -> None:
    batches = [on.ids([[number]]) for number in range(count)]
    for batch in on.ahead(layer, batches, name="job", **how):
        trained(on, layer, batch)


@pytest.mark.filterwarnings("error")
def test_a_loop_that_goes_on_without_the_rest_of_its_trainer_warns(
    store: Store, on: Any, tmp_path: Path
) -> None:
    layer = on.one_table(store)
    train(on, layer, 2, resume=True)
    layer.save("two", directory=tmp_path)
    train(on, layer, 3, resume=True)  # its trainer has been there
    fresh = on.one_table(store)
    with pytest.warns(UserWarning, match=r"'job' resumes after step 3, but load\(\) was not"):
        train(on, fresh, 4, resume=True)
    loaded = on.one_table(store)
    loaded.load("two", directory=tmp_path)
    train(on, loaded, 4, resume=True)
    told = on.one_table(store)
    train(on, told, 1, resume=False)
    assert store.table("t").t == 5


@pytest.mark.parametrize("is_ahead", [False, True])
def test_gradients_that_were_refused_are_given_up_as_told(
    store: Store, on: Any, is_ahead: bool
) -> None:
    layer, ids = on.one_table(store), on.ids([[1, 2]])
    loop = on.ahead(layer, [ids, ids]) if is_ahead else [ids, ids]
    for number, batch in enumerate(loop):
        if number == 0:
            on.back_of(layer, batch, float("nan"))
            text = refusal(layer.step)
            (verb,) = re.findall(r"gradients are kept: (\w+)\(\) discards them", text)
            getattr(layer, verb)()
        on.back_of(layer, batch)
        layer.step()
    assert store.table("t").t == 2
    assert np.isfinite(store.table("t").lookup([1, 2])).all()
