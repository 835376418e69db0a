"""Wrong use of hot/cold training is answered, and changes nothing."""

from functools import partial

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError, TableNotFoundError
from embstore.handles.sessions import SomeGradients
from embstore.profiles.hotset import HotSet
from embstore_training.hotcold.run import HotColdRun
from embstore_training.hotcold.update import Receipt
from tests.conformance.cases import generator, ones
from tests.conformance.hotness.hotcold import (
    COLUMNS,
    ROWS,
    Trainer,
    chunks_of,
    hot_keys,
    hotcold_twin,
    ones_for,
    run_of,
    shape_of,
)

BAD_OPTIONS = {"learning_rate": -1.0}, {"learning_rate": 0.0}, {"gradient_scale": np.inf}


@pytest.fixture
def twin(open_twin):
    return hotcold_twin(open_twin)


@pytest.mark.needs("plain_keys")
def test_hot_set_of_other_tables(twin):
    other, beyond = HotSet({"other": np.arange(3)}), HotSet({"sgd": np.array([5, ROWS])})
    for hot_set, columns, error, text in (
        (other, COLUMNS, InvalidArgumentError, "expected a table of the hot set"),
        (other, {"c1": "other"}, TableNotFoundError, "other"),
        (beyond, {"c1": "sgd"}, InvalidArgumentError, f"'sgd'.*{ROWS}\\), found {ROWS}"),
    ):
        with pytest.raises(error, match=text):
            HotColdRun(twin.store, hot_set, columns, batch_size=4).__enter__()
    assert not twin.store.sessions.stats()


def test_arguments_are_checked_before_anything_is_opened(twin):
    hot_set = hot_keys()
    for given in (
        {"batch_size": 0},
        {"rate": 0},
        {"rate": 101},
        {"window_batches": 0},
        {"rank": 1},
        {"shared": True},
        {"resume": True},
    ):
        with pytest.raises(InvalidArgumentError):
            run_of(twin.store, **given)
    with pytest.raises(InvalidArgumentError):
        HotColdRun(twin.store, hot_set, {}, batch_size=4)


@pytest.mark.needs("plain_keys")
def test_ids_beyond_the_table_are_named(twin):
    trainer = Trainer(twin.reference)
    chunks = chunks_of(generator(918), 120)
    for id, text in ((-1, "c2.*-1"), (ROWS, f"adagrad.*{ROWS}")):
        bad = {name: np.ones(shape_of(name, 1), np.int64) for name in chunks[0]}
        bad["label"], bad["c2"] = np.zeros(1), np.array([id])
        with pytest.raises(InvalidArgumentError, match=text), run_of(twin.store) as run:
            trainer.train_all(run.steps([*chunks, bad]))
        twin.check()


def test_steps_are_used_once_and_inside_the_block(twin):
    trainer = Trainer(twin.reference)
    kept = []
    with run_of(twin.store) as run:
        for step in run.steps(chunks_of(generator(919), 300)):
            gradients = ones_for(step)
            for text, given in (
                (r"other|adam", gradients | {"other": ones(1)}),
                ("adam", gradients | {"adam": ones(1, 5)}),
                ("dtype", gradients | {"adam": gradients["adam"].astype(np.float64)}),
            ):
                with pytest.raises(InvalidArgumentError, match=text):
                    step.update(given)
            unique = {t: np.unique(k) for t, k in step.keys.items()}
            for positions in ([-1, 0], [1, 0], [0, 0], [0, len(unique["adam"])], [0.5, 1]):
                some = SomeGradients(np.array(positions), ones(2, 5))
                with pytest.raises(InvalidArgumentError, match="adam"):
                    step.update_unique({"adam": some})
            for send, text in (
                (partial(step.update_unique, {"adam": ones(1, 5)}), "adam.*shape"),
                (partial(step.update_unique, {"other": ones(1, 5)}), "other"),
                (partial(step.update_pooled, {"adam": ones(1, 5)}), "adam.*shape"),
                (partial(step.lookup_pooled, {"adam": [0, 1]}), "adam"),
                (partial(step.lookup_pooled, {"adam": None}, {"adam": "sum"}), "modes"),
            ):
                with pytest.raises(InvalidArgumentError, match=text):
                    send()
            for options in BAD_OPTIONS:
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
            step._entry.finished_by = ""
        kept[0]._entry.receipt = Receipt()
    with pytest.raises(InvalidArgumentError, match="with block"):
        kept[0].lookup()
    with pytest.raises(InvalidArgumentError, match="with block"):
        next(run.steps([]))
    with pytest.raises(InvalidArgumentError, match="with block"):
        kept[0].update({})
