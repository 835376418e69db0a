"""Names, dims, rows, seeds, optimizers and initializers that are none."""

import numpy as np
import pytest

from embstore.config import (
    OPTIMIZERS,
    Adagrad,
    Adam,
    Constant,
    Ftrl,
    Limits,
    Normal,
    RowWiseAdagrad,
    Sgd,
    Uniform,
)
from embstore.errors import CapacityError, InvalidArgumentError
from tests.conformance.cases import config, each, raising, refused, unchanged

OUTSIDE = "/ /a a/ a//b /etc/passwd . .. ../a a/.. a/../b a/./b a\\b a:b a* ~ ~/a %2e%2e".split()
NAMES = [*OUTSIDE, "", "a b", "ä", "a\n", "a\0", "x" * 256, None, 5, b"a", ["a"], ("a",)]


def assert_refused(store, *parts, name="a", **given):
    with raising(InvalidArgumentError, "expected", "found", *parts):
        store.create_table(name, **config(**given))


FIELDS = {
    "dim": ("[1, 4096]", [0, -1, 4097, 4.0, True, None, "4", np.float32(4), [4]]),
    "rows": ("[0, 1099511627776]", [-1, 2**40 + 1, 2**64, 4.0, True, None, "4", [4]]),
    "seed": ("18446744073709551615", [-1, 2**64, 1.0, True, "1", [1]]),
    "optimizer": ("", [None, "sgd", Sgd, 0.1, {"kind": "sgd"}, Constant(0.0)]),
    "initializer": ("", [None, "uniform", Uniform, 0.0, Sgd(0.1)]),
}


def test_names_and_fields(open_twin):
    store = open_twin(kept=config()).store
    with unchanged(store):
        for name in each(NAMES):
            assert_refused(store, "table name", repr(name), name=name)
        for field, value in each([(f, v) for f in FIELDS for v in FIELDS[f][1]]):
            parts = "table 'a'", field, FIELDS[field][0], repr(value)
            assert_refused(store, *parts, **{field: value})


def test_no_name_leads_out_of_the_directory(backend):
    """No file is called as a table; a name that looks like a path is refused all the same."""
    store = backend.open_store()
    for name in ("../out", "a/../../out", "/out"):
        with pytest.raises(InvalidArgumentError):
            store.create_table(name, **config())
    store.create_table(".../..a/-", **config())
    store.close()
    assert [p.name for p in backend.path().parent.iterdir()] == [backend.path().name]
    files = {str(p.relative_to(backend.path())) for p in backend.path().rglob("*")}
    assert files <= {"CATALOGUE", "LOCK", "store.json", "log", "commands"} | {
        f for f in files if f.startswith("commands/")
    }


NUMBERS = [-0.1, float("nan"), float("inf"), 3.5e38, 1e400, 10**400, None, "x", "0.1", [0.1], 1j]
"""float() would take text, and arithmetic fail on it later, in the middle of training."""
PARAMETERS = [
    *((kind, "learning_rate", []) for kind in OPTIMIZERS.values()),
    *((kind, "initial_accumulator", []) for kind in (Adagrad, RowWiseAdagrad)),
    *((kind, "epsilon", [0.0, 1e-46, 1e-39]) for kind in (Adagrad, RowWiseAdagrad, Adam)),
    *((Adam, name, [1.0, 1.5]) for name in ("beta1", "beta2")),
    *((Ftrl, name, []) for name in ("beta", "l1", "l2")),
    *((kind, "weight_decay", []) for kind in (Sgd, Adagrad, RowWiseAdagrad, Adam)),
    (Ftrl, "learning_rate", [0, -0.0, 1e-46]),
    (Ftrl, "weight_decay", [0.1]),
]
"""A parameter of an optimizer, and which numbers more it refuses."""


def test_parameters_of_optimizers():
    for kind, name, more in each(PARAMETERS):
        for value in each(NUMBERS + more):
            with pytest.raises(InvalidArgumentError, match=f"expected .*{name} "):
                kind(**({"learning_rate": 0.1} | {name: value}))


def test_epsilon_of_adam_at_its_first_update():
    """Rule 4: fp32(eps * sqrt(1 - b2)) must be normal too."""
    Adam(0.1, beta2=0.9999, epsilon=1.2e-36)
    with pytest.raises(InvalidArgumentError, match=r"expected epsilon \* sqrt"):
        Adam(0.1, beta2=0.9999, epsilon=1.1e-36)


def test_betas_at_the_edges(open_twin):
    twin = open_twin()
    for place, (beta1, beta2) in enumerate([(0.0, 0.0), (1 - 1e-9, 0.5), (0.0, 0.999999)]):
        optimizer = Adam(0.1, beta1=beta1, beta2=beta2)
        twin.create_table(f"t{place}", **config(optimizer=optimizer))
        for _ in range(3):
            twin.on(f"t{place}", "update", [1], np.ones((1, 4), np.float32))


def test_values_of_initializers():
    for value in each(v for v in NUMBERS if v != -0.1):
        for make in (
            lambda v: Constant(v),
            lambda v: Uniform(v, 1.0),
            lambda v: Uniform(-1.0, v),
            lambda v: Normal(v, 1.0),
            lambda v: Normal(0.0, v),
        ):
            with pytest.raises(InvalidArgumentError, match="expected"):
                make(value)
    with pytest.raises(InvalidArgumentError, match="std"):
        Normal(0.0, -1.0)
    with pytest.raises(InvalidArgumentError, match="low <= high"):
        Uniform(1.0, 0.5)
    with pytest.raises(InvalidArgumentError, match=r"high - low.*3e\+38"):
        Uniform(-3e38, 3e38)


def test_more_tables_than_the_limit(open_twin):
    twin = open_twin(limits=Limits(tables_max=2), **dict.fromkeys("ab", config()))
    with refused(twin.store, CapacityError, "table 'c'", "2 tables", "limits.tables_max"):
        twin.store.create_table("c", **config())
    twin.create_table("a", **config())
    twin.drop_table("a")
    twin.create_table("c", **config())


def test_row_too_large_for_the_cache(open_twin):
    twin = open_twin(cache_bytes=64 << 10, a=config())
    with refused(twin.store, CapacityError, "table 'b'", "cache_bytes"):
        twin.store.create_table("b", **config(dim=4096, optimizer=Adam(0.1)))
    twin.on("a", "update", [1], np.ones((1, 4), np.float32))
    twin.reopen()
