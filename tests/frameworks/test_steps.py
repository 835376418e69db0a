"""What `step` sends, in each framework: to the bit what a program in NumPy sends that is given the
same gradients. What one framework alone has is in its own file.

An adapter (`on_torch.py`, `on_keras.py`, `on_jax.py`) makes layers and batches; `call` looks up,
`back` looks up and goes back, and returns the gradients that the outputs got.
"""

import importlib
from typing import Any

import numpy as np
import pytest

from embstore import InvalidArgumentError, Uniform
from embstore.handles.store import Store
from tests.frameworks.numpy_twin import Forward, Twin
from tests.frameworks.tables import TABLE
from tests.serving import Server, patient

ROWS = 40


@pytest.fixture(params=["torch", "keras", "jax"])
def on(request: pytest.FixtureRequest) -> Any:
    framework, *how = request.param.split()
    pytest.importorskip(framework, reason=f"needs {framework}")
    return importlib.import_module(f"tests.frameworks.on_{framework}").Adapter(*how)


ALL = pytest.mark.parametrize("on", ["torch", "keras", "keras compiled", "jax"], indirect=True)
WITH_MODULES = pytest.mark.parametrize("on", ["torch", "keras"], indirect=True)
AHEAD = pytest.mark.parametrize("is_ahead", [False, True])


def forwards(twins: Any, gradients: Any) -> list[Forward]:
    return [Forward(*of) for of in zip(twins, gradients, strict=True)]


def array(rows: Any) -> Any:
    return np.asarray(rows.detach() if hasattr(rows, "detach") else rows)


@ALL
@AHEAD
def test_updates_are_those_of_numpy(store: Store, is_ahead: bool, on: Any) -> None:
    rng, layer = np.random.default_rng(1), on.collection(store)
    twin = Twin(layer)
    batches: Any = [on.batch_of(rng) for _ in range(6)]
    if is_ahead:
        batches = on.ahead(layer, batches, lambda batch: batch[0], lookahead=3)
    for given, twins in batches:
        twin.step(forwards([twins], on.back(layer, [given])))
        layer.step()
    twin.assert_same()
    assert store.table("a").t == 6


@AHEAD
@ALL
def test_micro_batches_are_one_update_in_their_order(store: Store, on: Any, is_ahead: bool) -> None:
    """Also within one graph, whose operations run side by side where they may."""
    if is_ahead and on.features == "xyzi":
        pytest.skip("a loop of JAX announces one lookup a batch")
    rng, layer = np.random.default_rng(2), on.collection(store)
    twin = Twin(layer)
    batches: Any = [[on.batch_of(rng) for _ in range(4)] for _ in range(2)]
    if is_ahead:
        batches = on.ahead(layer, batches, lambda batch: [given for given, _ in batch])
    for batch in batches:
        given, twins = zip(*batch, strict=True)
        twin.step(forwards(twins, on.back(layer, given)))
        layer.step()
    twin.assert_same()
    assert store.table("a").t == 2


def test_micro_batches_are_to_the_bit_the_whole_batch(embedded: Store, on: Any) -> None:
    options = {"dim": 8, "seed": 5, "initializer": Uniform(-1, 1)}
    whole, parts = (on.one_table(embedded, name, **options) for name in ("w", "p"))
    ids = np.random.default_rng(3).zipf(1.2, (600, 1)) % ROWS
    on.back_of(whole, on.ids(ids))
    for part in np.split(ids, 4):
        on.back_of(parts, on.ids(part))
    whole.step()
    parts.step()
    found = [embedded.table(name).lookup(np.arange(ROWS)) for name in ("w", "p")]
    np.testing.assert_array_equal(*found)


@ALL
def test_what_the_loss_does_not_use_is_no_update(store: Store, on: Any) -> None:
    rng, layer = np.random.default_rng(5), on.collection(store)
    twin, command = Twin(layer), store.command
    given, twins = on.batch_of(rng)
    on.call(layer, given)
    assert layer.step() is None
    assert store.command == command
    on.call(layer, given)
    twin.step(forwards([twins], on.back(layer, [given], "z")))
    layer.step()
    twin.assert_same()
    facts = store.table_facts()
    assert (facts["a"].t, facts["b"].t) == (0, 1)


def test_what_has_no_gradient_is_not_updated_by_a_step_of_a_session(store: Store, on: Any) -> None:
    rng, layer = np.random.default_rng(6), on.collection(store)
    twin = Twin(layer)
    batches = [on.batch_of(rng) for _ in range(6)]
    for number, (given, twins) in enumerate(on.ahead(layer, batches, lambda batch: batch[0])):
        if number % 3:
            features = "z" if number % 3 == 1 else "xz"  # ids of "y" were announced
            twin.step(forwards([twins], on.back(layer, [given], features)))
        layer.step()
    twin.assert_same()
    facts = store.table_facts()
    assert (facts["a"].t, facts["b"].t) == (2, 4)


def test_a_learning_rate_is_of_one_step(embedded: Store, on: Any) -> None:
    rng, layer = np.random.default_rng(7), on.collection(embedded)
    twin = Twin(layer)
    for options in ({}, {"learning_rate": 0.5}, {}):
        given, twins = on.batch_of(rng)
        twin.step(forwards([twins], on.back(layer, [given])), **options)
        layer.step(**options)
    twin.assert_same()


@ALL
@pytest.mark.parametrize("how", [{}, {"waits": "late"}, {"waits": "none"}])
def test_learning_rates_of_one_step_are_given_by_table(
    embedded: Store, how: dict[str, Any], on: Any
) -> None:
    rng, layer = np.random.default_rng(14), on.collection(embedded)
    twin = Twin(layer)
    batches: Any = [on.batch_of(rng) for _ in range(4)]
    if how:
        batches = on.ahead(layer, batches, lambda batch: batch[0], lookahead=3, **how)
    for number, (given, twins) in enumerate(batches):
        options: Any = [{}, {"learning_rate": {"b": 0.5}}][number % 2]
        features = "x" if number == 3 else on.features  # of "b" there is no gradient
        twin.step(forwards([twins], on.back(layer, [given], features)), **options)
        layer.step(**options)
    twin.assert_same()


def test_a_learning_rate_of_a_table_that_is_not_the_layers_is_refused(
    embedded: Store, on: Any
) -> None:
    layer = on.one_table(embedded)
    embedded.create_table("other", **TABLE)
    on.back_of(layer, on.ids([[1, 2]]))
    with pytest.raises(InvalidArgumentError, match=r"tables of \['t'\], found \['other'\]"):
        layer.step(learning_rate={"other": 0.1})
    layer.step(learning_rate={"t": 0.0})


def test_evaluation_keeps_nothing_and_admits_no_row(embedded: Store, on: Any) -> None:
    layer = on.collection(embedded)
    given, _ = on.batch_of(np.random.default_rng(9))
    on.call(layer, given, training=False)
    assert embedded.table("a").stats()["resident_rows"] == 0
    assert layer.step() is None
    on.back(layer, [given])
    assert embedded.table("a").stats()["resident_rows"] > 0
    on.forget(layer)
    assert layer.step() is None


@WITH_MODULES
def test_evaluation_within_a_step_reads_what_is_there(embedded: Store, on: Any) -> None:
    layer, ids = on.one_table(embedded), on.ids([[1, 2]])
    for batch in on.ahead(layer, [ids, ids]):
        before = array(on.call(layer, batch, training=False)).copy()
        on.back_of(layer, batch)
        layer.step()
        now = on.call(layer, on.ids([[1, 2], [30, 31]]), training=False)
        assert (array(now)[0] != before[0]).any()


def test_gradients_that_are_refused_are_kept(embedded: Store, on: Any) -> None:
    layer = on.one_table(embedded)
    on.back_of(layer, on.ids([[1, 2]]), np.inf)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="finite"):
            layer.step()
    done = layer.step(on_nonfinite="skip")
    assert done is not None and done.skipped
    assert layer.step() is None
    assert embedded.table("t").t == 0


# A loop over a session


def test_gradients_that_were_not_sent_are_not_lost_in_silence(embedded: Store, on: Any) -> None:
    layer, ids = on.one_table(embedded), on.ids([[1, 2]])
    with pytest.raises(InvalidArgumentError, match=r"step\(\)"):
        for batch in on.ahead(layer, [ids] * 2):
            on.back_of(layer, batch)
    assert layer.step() is None
    on.back_of(layer, ids)
    with pytest.raises(InvalidArgumentError, match=r"step\(\)"):
        layer.save("label")
    assert embedded.checkpoints() == []


@WITH_MODULES
def test_ids_that_were_not_announced_are_refused_by_name(embedded: Store, on: Any) -> None:
    layer, announced = on.one_table(embedded), np.array([[1, 2]])
    for _ in on.ahead(layer, [on.ids(announced)]):
        on.call(layer, on.ids([[2], [2]]))
        with pytest.raises(InvalidArgumentError, match="step 1, found 3"):
            on.call(layer, on.ids([[2, 3]]))
        layer.step()
    for _ in on.ahead(layer, [on.ids(announced[:, :0])]):
        with pytest.raises(InvalidArgumentError, match="found 3"):
            on.call(layer, on.ids([[3]]))
        layer.step()


@WITH_MODULES
def test_arguments_of_one_table_may_be_a_tuple(embedded: Store, on: Any) -> None:
    layer, weights = on.one_table(embedded), np.array([[1, 2], [3, 4]], np.float32)
    batch = on.weighted(on.ids([[1, 2], [3, 1]]), on.ids(weights))
    wanted = embedded.table("t").lookup_pooled([1, 2, 3, 1], [0, 2, 4], weights=weights.reshape(-1))
    for arguments in on.ahead(layer, [batch]):
        np.testing.assert_array_equal(array(on.call(layer, *arguments)), wanted)
        layer.step()
    assert layer.last_step == 1


def test_a_loop_that_is_left_closes_its_session(embedded: Store, on: Any) -> None:
    layer, batches = on.one_table(embedded), [on.ids([[n]]) for n in range(5)]
    for batch in on.ahead(layer, batches):
        with pytest.raises(InvalidArgumentError, match="loop before"):
            next(on.ahead(layer, []))
        on.back_of(layer, batch)
        layer.step()
        break
    assert embedded.sessions.stats() == []
    on.back_of(layer, batches[0])
    assert layer.step() is not None


def test_a_batch_without_a_step_is_released(embedded: Store, on: Any) -> None:
    layer = on.one_table(embedded)
    for number, _ in enumerate(on.ahead(layer, [on.ids([[1]])] * 3)):
        if number == 1:
            assert layer.step() is not None
    assert layer.last_step == 3
    assert embedded.table("t").t == 0


# Freezing


@ALL
@AHEAD
def test_frozen_tables_are_not_updated_until_they_are_thawed(
    store: Store, is_ahead: bool, on: Any
) -> None:
    rng, layer = np.random.default_rng(13), on.collection(store)
    twin = Twin(layer)
    batches: Any = [on.batch_of(rng) for _ in range(6)]
    if is_ahead:
        batches = on.ahead(layer, batches, lambda batch: batch[0], lookahead=3)
    layer.freeze("a")
    for number, (given, twins) in enumerate(batches):
        if number == 4:
            layer.unfreeze()
        (gradients,) = on.back(layer, [given])
        if number < 4:
            gradients |= {"x": None, "y": None}
        twin.step(forwards([twins], [gradients]))
        layer.step()
    twin.assert_same()
    facts = store.table_facts()
    assert (facts["a"].t, facts["b"].t) == (2, 6)


@pytest.mark.filterwarnings("error")
def test_steps_of_a_layer_that_is_frozen_are_released(store: Store, on: Any) -> None:
    layer, ids = on.one_table(store, trainable=False), on.ids([[1, 2]])
    digest = store.table("t").digest()
    for batch in on.ahead(layer, [ids] * 20):
        on.back_of(layer, batch)
        layer.step()
    on.back_of(layer, ids)
    assert layer.step() is None
    assert (store.table("t").t, store.table("t").digest()) == (0, digest)


def test_tables_that_are_not_the_layers_cannot_be_frozen(embedded: Store, on: Any) -> None:
    layer = on.collection(embedded)
    with pytest.raises(InvalidArgumentError, match=r"tables of \['a', 'b'.*found \['items'\]"):
        layer.freeze("a", "items")
    assert layer.frozen == frozenset()


def test_a_copy_is_frozen_as_its_layer_is(server: Server, on: Any) -> None:
    with patient(server.address) as store:
        layer = on.collection(store)
        layer.freeze("b")
        arrived, _ = on.carried(layer)
    assert arrived.frozen == {"b"}


def test_a_layer_shows_its_tables_as_they_are(embedded: Store, on: Any) -> None:
    layer = on.collection(embedded)
    layer.freeze("b")
    embedded.table("a").learning_rate = 0.25
    a, b = repr(layer).split("name='b'")
    assert "learning_rate=0.25" in a and "trainable=True" in a
    assert "learning_rate=0.1" in b and "trainable=False" in b.split("name=")[0]


# Features and copies


@WITH_MODULES
def test_all_tables_are_one_call_of_lookup_and_one_of_update(
    embedded: Store, monkeypatch: pytest.MonkeyPatch, on: Any
) -> None:
    layer, calls = on.collection(embedded), []
    execute = embedded.executor.execute

    def counted(command: Any, **options: Any) -> Any:
        calls.append(type(command).__name__)
        return execute(command, **options)

    monkeypatch.setattr(embedded.executor, "execute", counted)
    on.back(layer, [on.batch_of(np.random.default_rng(10))[0]])
    layer.step()
    assert calls == ["Lookup", "Update"]


def test_missing_features_are_refused(embedded: Store, on: Any) -> None:
    given, _ = on.batch_of(np.random.default_rng(11))
    del given["z"]
    with pytest.raises(InvalidArgumentError, match=r"missing are \['z'\]"):
        on.call(on.collection(embedded), given)


def test_a_copy_connects_again(server: Server, on: Any) -> None:
    given, _ = on.batch_of(np.random.default_rng(12))
    with patient(server.address, token="not to be carried") as store:
        layer = on.collection(store)
        wanted = on.call(layer, given, training=False)
        on.back(layer, [given])
        arrived, data = on.carried(layer)
        on.forget(layer)
    assert b"not to be carried" not in data
    assert arrived.tables == layer.tables
    found = on.call(arrived, given, training=False)
    for name in on.features:
        np.testing.assert_array_equal(array(found[name]), array(wanted[name]))
    assert arrived.step() is None
    arrived.store.close()


def test_a_copy_over_an_embedded_store_asks_for_another(embedded: Store, on: Any) -> None:
    arrived, _ = on.carried(on.collection(embedded))
    with pytest.raises(InvalidArgumentError, match="attach"):
        _ = arrived.store
    arrived.attach(embedded)
    assert arrived.store is embedded
