"""What a trainer does to a loop of `ahead` by habit: it works, or what the error says does."""

import importlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embstore import InvalidArgumentError
from embstore.handles.store import Store
from tests.frameworks.numpy_twin import Forward, Twin


@pytest.fixture(params=["torch", "keras"])
def on(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param, reason=f"needs {request.param}")
    return importlib.import_module(f"tests.frameworks.on_{request.param}").Adapter()


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidArgumentError) as refused:
        call()
    return str(refused.value)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_batches_are_accumulated_by_the_usual_code(store: Store, on: Any, count: int) -> None:
    rng, layer = np.random.default_rng(1), on.collection(store)
    twin, batches = Twin(layer), [on.batch_of(rng) for _ in range(7)]
    left: list[Any] = []
    loop = on.ahead(layer, batches, lambda batch: batch[0], accumulate=count, lookahead=2)
    for number, (given, twins) in enumerate(loop, 1):
        left += [Forward(twins, of) for of in on.back(layer, [given])]
        if number % count == 0 or number == len(batches):
            layer.step()
            twin.step(left)
            left = []
    twin.assert_same()
    assert layer.last_step == store.table("a").t == -(-7 // count)


def test_where_accumulating_goes_on_the_places_are_steps(embedded: Store, on: Any) -> None:
    layer, seen = on.one_table(embedded), []
    batches = [on.ids([[number]]) for number in range(8)]

    def loop(until: int) -> None:
        how = {"name": "job", "resume": True, "accumulate": 2}
        for number, batch in enumerate(on.ahead(layer, batches[:until], **how), 1):
            seen.append(int(np.asarray(batch)[0, 0]))
            on.back_of(layer, batch)
            if number % 2 == 0:
                layer.step()

    loop(4)
    loop(8)
    assert seen == list(range(8))
    assert layer.last_step == 4


def test_a_step_that_is_not_called_each_batch_is_told_how(embedded: Store, on: Any) -> None:
    layer, batches = on.one_table(embedded), [on.ids([[number]]) for number in range(8)]

    def train(**how: Any) -> None:
        for number, batch in enumerate(on.ahead(layer, batches, **how), 1):
            on.back_of(layer, batch)
            if number % 4 == 0:
                layer.step()

    text = refusal(train)
    ((name,),) = [re.findall(r"`ahead` (\w+)=N", text)]
    train(**{name: 4})
    assert embedded.table("t").t == 2
    on.back_of(layer, batches[0])
    text = refusal(lambda: layer.save("label"))
    ((forget,),) = [re.findall(r"(\w+)\(\) discards the gradients", text)]
    getattr(layer, forget)()
    assert layer.step() is None


def test_the_last_batches_of_a_loader_are_not_lost_in_silence(embedded: Store, on: Any) -> None:
    layer, batches = on.one_table(embedded), [on.ids([[number]]) for number in range(3)]

    def train() -> None:
        for number, batch in enumerate(on.ahead(layer, batches, accumulate=2), 1):
            on.back_of(layer, batch)
            if number % 2 == 0:
                layer.step()

    assert "after each Nth batch and after the last" in refusal(train)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", None])
def test_what_is_no_number_of_batches_is_refused(embedded: Store, on: Any, wrong: Any) -> None:
    layer = on.one_table(embedded)
    loop = on.ahead(layer, [on.ids([[1]])], accumulate=wrong)
    assert "accumulate" in refusal(lambda: next(loop))


def test_a_second_step_of_a_batch_says_so(embedded: Store, on: Any) -> None:
    layer, ids = on.one_table(embedded), on.ids([[1, 2]])
    for batch in on.ahead(layer, [ids, ids]):
        on.back_of(layer, batch)
        layer.step()
        assert "step() was called twice for this batch" in refusal(layer.step)
    assert embedded.table("t").t == 2


def test_a_forward_behind_the_step_says_what_works(embedded: Store, on: Any) -> None:
    layer, ids = on.one_table(embedded), on.ids([[1, 2]])
    for batch in on.ahead(layer, [ids]):
        on.back_of(layer, batch)
        layer.step()
        text = refusal(lambda batch=batch: on.call(layer, batch))
        assert "have the loader give it twice" in text
        assert "to read rows only, call " in text
        on.call(layer, batch, training=False)
    for batch in on.ahead(layer, [ids, ids]):  # two updates by one batch
        on.back_of(layer, batch)
        layer.step()
    assert embedded.table("t").t == 3


def test_ids_that_the_body_draws_are_told_where_to_be_drawn(embedded: Store, on: Any) -> None:
    """Negative samples: of the body they are refused, of the loader they are trained."""
    layer, rng = on.one_table(embedded), np.random.default_rng(1)
    positives = [on.ids([[number]]) for number in range(3)]
    for batch in on.ahead(layer, positives):
        drawn = on.ids([[30]])
        text = refusal(lambda drawn=drawn: on.call(layer, drawn))
        assert "negative samples, must come from the loader" in text
        on.call(layer, drawn, training=False)
        on.back_of(layer, batch)
        layer.step()

    def sampled() -> Any:
        for ids in positives:
            yield ids, on.ids(rng.integers(10, 20, (1, 4)))

    def both(batch: Any) -> list[Any]:
        return list(batch)

    for ids, negatives in on.ahead(layer, sampled(), both):
        on.back_of(layer, ids)
        on.back_of(layer, negatives)
        layer.step()
    assert embedded.table("t").t == 6


def test_a_loop_whose_batches_are_all_left_out_says_so(embedded: Store, on: Any) -> None:
    """A loop for each epoch, with resume=True in each: only the first one trains."""
    layer = on.one_table(embedded)
    epoch = [on.ids([[number]]) for number in range(4)]

    def train(batches: Any, **how: Any) -> None:
        for batch in on.ahead(layer, batches, name="job", **how):
            on.back_of(layer, batch)
            layer.step()

    train(epoch, resume=True)
    with pytest.warns(UserWarning, match="trained nothing: all of its 4 batches") as warned:
        train(epoch, resume=True)
    assert "for another epoch give resume=False" in str(warned[0].message)
    assert embedded.table("t").t == 4
    train(epoch, resume=False)
    assert embedded.table("t").t == 8
