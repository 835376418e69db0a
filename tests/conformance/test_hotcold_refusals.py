"""Wrong use of hot/cold training is answered, and changes nothing."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError, TableNotFoundError
from embstore.frequency.hotset import HotSet
from embstore_client.hotcold.run import HotColdRun
from tests.conformance.cases import generator, ones
from tests.conformance.hotcold import (
    COLUMNS,
    ROWS,
    TABLES,
    Trainer,
    chunks_of,
    count_commands,
    hot_keys,
    run_of,
    shape_of,
    tables_in,
)

Open = Callable[..., Any]


@pytest.fixture
def twin(open_twin: Open) -> Iterator[Any]:
    made = tables_in(open_twin())
    yield made
    count_commands(made)


def test_hot_set_of_other_tables(twin: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="expected a table of the hot set"):
        HotColdRun(twin.store, HotSet({"other": np.arange(3)}), COLUMNS, batch_size=4)
    other = HotSet({"other": np.arange(3)})
    with (
        pytest.raises(TableNotFoundError, match="other"),
        HotColdRun(twin.store, other, {"c1": "other"}, batch_size=4),
    ):
        pass
    beyond = HotSet({"sgd": np.array([5, ROWS])})
    with (
        pytest.raises(InvalidArgumentError, match=f"'sgd'.*{ROWS}\\), found {ROWS}"),
        HotColdRun(twin.store, beyond, {"c1": "sgd"}, batch_size=4),
    ):
        pass
    assert not twin.store.sessions.facts()


def test_arguments_are_checked_before_anything_is_opened(twin: Any) -> None:
    hot_set = hot_keys()
    for given in (
        {"batch_size": 0},
        {"rate": 0},
        {"rate": 101},
        {"window_batches": 0},
        {"rank": 1},
        {"shared": True},
    ):
        with pytest.raises(InvalidArgumentError):
            run_of(twin.store, **given)
    with pytest.raises(InvalidArgumentError):
        HotColdRun(twin.store, hot_set, {}, batch_size=4)


def test_ids_beyond_the_table_are_named(twin: Any) -> None:
    trainer = Trainer(twin.reference)
    chunks = chunks_of(generator(918), 120)
    for id, text in ((-1, "c2.*-1"), (ROWS, f"adagrad.*{ROWS}")):
        bad = {name: column[:1].copy() for name, column in chunks[0].items()}
        bad = {name: np.ones(shape_of(name, 1), np.int64) for name in chunks[0]}
        bad["label"], bad["c2"] = np.zeros(1), np.array([id])
        with pytest.raises(InvalidArgumentError, match=text), run_of(twin.store) as run:
            for step in run.steps([*chunks, bad]):
                trainer.train(step)
        count_commands(twin)
        twin.check()


def test_steps_are_used_once_and_inside_the_block(twin: Any) -> None:
    trainer = Trainer(twin.reference)
    kept = []
    with run_of(twin.store) as run:
        for step in run.steps(chunks_of(generator(919), 300)):
            gradients = {t: ones(len(k), TABLES[t]["dim"]) for t, k in step.keys.items()}
            with pytest.raises(InvalidArgumentError, match=r"other|adam"):
                step.update(gradients | {"other": ones(1)})
            with pytest.raises(InvalidArgumentError, match="adam"):
                step.update({t: g for t, g in gradients.items() if t != "adam"})
            with pytest.raises(InvalidArgumentError, match="adam"):
                step.update(gradients | {"adam": ones(1, 5)})
            with pytest.raises(InvalidArgumentError, match="dtype"):
                step.update(gradients | {"adam": gradients["adam"].astype(np.float64)})
            for options in ({"learning_rate": -1.0}, {"gradient_scale": np.inf}):
                with pytest.raises(InvalidArgumentError):
                    step.update(gradients, **options)
            trainer.train(step)
            for again in (step.lookup, step.release, step.skip, partial(step.update, gradients)):
                with pytest.raises(InvalidArgumentError, match="was updated"):
                    again()
            with pytest.raises(InvalidArgumentError, match="another run"):
                next(run.steps([]))
            kept.append(step)
        kept = [next(s for s in kept if s.is_hot is is_hot) for is_hot in (True, False)]
        for step in kept:
            step._finished_by = ""
    with pytest.raises(InvalidArgumentError, match="with block"):
        kept[0].lookup()
    with pytest.raises(InvalidArgumentError, match="with block"):
        next(run.steps([]))
    with pytest.raises(InvalidArgumentError, match="with block"):
        kept[0].update({})
    count_commands(twin)
