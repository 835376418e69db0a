"""The ways to train a step of a loop, whatever kind of run it is of: each does it on a store and on
the reference, and compares what both say."""

import numpy as np
import pytest

from embstore.errors import InvalidArgumentError
from embstore.handles.sessions import SomeGradients
from tests.conformance.cases import assert_same, normal
from tests.conformance.traces import cut_into_bags, values

MODES = "sum", "mean", None
"""How a table's rows may be pooled; None: not at all."""


def dim_of(twin, table):
    return twin.reference.table(table).config.dim


def gradients_of(twin, keys, rng):
    return {name: values(rng, len(of), dim_of(twin, name)) for name, of in keys.items()}


def share(keys, gradients):
    """Return gradients as an update of the reference takes them."""
    return {name: (keys[name], of) for name, of in gradients.items()}


def rows(twin, step, keys, rng):
    """Each occurrence of a key has a row and a gradient."""
    found = step.lookup()
    for name, wanted in twin.reference.lookup(keys).items():
        assert_same(found[name], wanted)
    gradients = gradients_of(twin, keys, rng)
    options = {"learning_rate": 0.02, "gradient_scale": 0.5} if rng.random() < 0.5 else {}
    done = step.update(gradients, **options)
    assert done.t == twin.reference.update(share(keys, gradients), **options)


def some_tables(twin, step, keys, rng):
    """A table that is left out has no gradient, and keeps its t."""
    left = {name: of for name, of in keys.items() if rng.random() < 0.5}
    gradients = gradients_of(twin, left, rng)
    done = step.update(gradients)
    twin.reference.update(share(keys, gradients))
    assert all(t == twin.reference.table(name).t for name, t in done.t.items())


def distinct(step, keys):
    """Look up the distinct keys of a step; yield each table, its rows and these keys."""
    for name, (found, inverse) in step.lookup_unique().items():
        once = np.empty(len(found), np.int64)
        once[inverse] = keys[name]
        assert len(found) == len(np.unique(keys[name]))
        yield name, found, inverse, once


def unique(twin, step, keys, rng):
    """Each distinct key has a row and a gradient."""
    sent = {}
    for name, found, inverse, once in distinct(step, keys):
        assert_same(found[inverse], twin.reference.table(name).lookup(keys[name]))
        sent[name] = once, normal(rng, *found.shape)
    done = step.update_unique({name: of for name, (_, of) in sent.items()}, gradient_scale=0.5)
    assert done.t == twin.reference.update(sent, gradient_scale=0.5)


def some_keys(twin, step, keys, rng):
    """A distinct key that is left out has no gradient, and keeps its row."""
    sent, given = {}, {}
    for name, found, _, once in [*distinct(step, keys)][1:]:
        positions = np.flatnonzero(rng.random(len(found)) < 0.5)
        gradients = normal(rng, len(positions), found.shape[1])
        sent[name] = once[positions], gradients.copy()
        given[name] = SomeGradients(positions, gradients)
    step.update_unique(given)
    for some in given.values():
        some.rows[:] = np.nan  # the caller's again
    twin.reference.update(sent)


def bags(twin, step, keys, rng):
    """Each table is pooled in its own way, or plain; short bags, and such of any length."""
    is_short, how = rng.random() < 0.5, {}
    for name, of in keys.items():
        mode, count = MODES[rng.integers(3)], len(of)
        short = np.unique([*range(0, count, 2), count])
        offsets = short if is_short else cut_into_bags(rng, count)
        weights = values(rng, count) if mode == "sum" and rng.random() < 0.5 else None
        how[name] = (np.arange(count + 1) if mode is None else offsets), mode, weights
    found = step.lookup_pooled(
        {name: None if mode is None else offsets for name, (offsets, mode, _) in how.items()},
        {name: mode for name, (_, mode, _) in how.items() if mode == "mean"},
        {name: weights for name, (_, _, weights) in how.items() if weights is not None},
    )
    gradients, first = {}, twin.reference.command_number
    for name, (offsets, mode, weights) in how.items():
        table, pooled = twin.reference.table(name), (keys[name], offsets, mode or "sum", weights)
        wanted = table.lookup_pooled(*pooled)
        assert_same(found[name], wanted)
        gradients[name] = normal(rng, *wanted.shape)
    step.update_pooled(gradients)
    for name, (offsets, mode, weights) in how.items():
        table = twin.reference.table(name)
        table.update_pooled(keys[name], offsets, gradients[name], mode or "sum", weights)
    twin.reference.command_number = first + 1


def skipped(twin, step, keys, rng):
    is_skipped = rng.random() < 0.5
    done = step.skip() if is_skipped else step.release()
    assert step.is_finished
    assert done.skipped == is_skipped
    assert done.t == {name: twin.reference.table(name).t for name in done.t}
    if hasattr(step, "is_hot"):
        assert (done.command > 0) == (not step.is_hot)
    twin.reference.command_number += 1


def overflowing(twin, step, keys, rng):
    """What rule 9 refuses is skipped."""
    gradients = gradients_of(twin, keys, rng)
    next(iter(gradients.values()))[0, 2] = np.inf
    done = step.update(gradients, on_nonfinite="skip")
    assert done.skipped
    assert done.t == {name: twin.reference.table(name).t for name in done.t}
    twin.reference.command_number += 1


def refused(twin, step, keys, rng):
    """What is refused changes nothing, and the step goes on."""
    gradients, name = gradients_of(twin, keys, rng), next(iter(keys))
    before = step.lookup()[name].copy()
    of_one = gradients[name]
    wrong = np.full_like(of_one, 3e19)
    for send, given, options, text in (
        (
            step.update,
            gradients | {name: wrong},
            {},
            f"{name}.*key {int(keys[name][0]) % 2**64}\\b",
        ),
        (step.update, gradients | {name: wrong / 10}, {"gradient_scale": 3e38}, "finite"),
        (step.update, gradients | {name: of_one[:, 1:]}, {}, f"{name}.*shape|expected.*\\("),
        (step.update, gradients, {"learning_rate": float("nan")}, "learning_rate"),
        (step.update_unique, {name: SomeGradients(np.array([900]), of_one[:1])}, {}, name),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            send(given, **options)
    assert not step.is_finished
    assert_same(step.lookup()[name], before)
    step.update(gradients)
    twin.reference.update(share(keys, gradients))


WAYS = rows, some_tables, unique, some_keys, bags, skipped, overflowing, refused
