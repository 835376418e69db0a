"""digest: what it says, and that keeping it up to date gives what a fresh store computes."""

import numpy as np
import pytest

from embstore.config import RowWiseAdagrad, Sgd, Uniform
from tests.conformance.cases import config, grow, ones

VECTOR = {"dim": 4, "rows": 3, "initializer": Uniform(-0.1, 0.1), "seed": 7}
VECTORS = {
    "sgd": (Sgd(0.05), "c099f16ab0b1b6b8bd9520e0380e272527408843f4ff45b731116709fd975235"),
    "rowwise_adagrad": (
        RowWiseAdagrad(0.05),
        "ba995de3753d3c3d56e4c1fbdaeff2ce0747166c48502bf1cf458cf827fa059b",
    ),
}


@pytest.mark.parametrize(("optimizer", "digest"), VECTORS.values(), ids=VECTORS)
@pytest.mark.needs("plain_keys")
def test_vectors_of_the_contract(open_twin, optimizer, digest):
    twin = open_twin()
    table = twin.create_table("v", optimizer=optimizer, **VECTOR)
    grads = np.arange(1, 13, dtype=np.float32).reshape(3, 4) * np.float32(0.1)
    twin.on("v", "update", [2, 0, 2], grads)
    twin.on("v", "update", [2], grads[:1])
    assert table.digest() == digest


def test_tunables_are_not_in_it(open_table):
    twin, table = open_table()
    twin.on("a", "update", [1], ones(1))
    before = table.digest()
    grow(twin, "a", 5000)
    table.learning_rate = twin.reference.table("a").learning_rate = 9.0
    assert table.digest() == before


@pytest.mark.needs("plain_keys")
def test_first_and_last_keys_of_blocks(open_twin):
    keys = 0, 255, 256, 511, 512, 2**39, 2**40 - 1
    twin = open_twin(**{f"of-{key}": config(rows=2**40) for key in keys})
    for changed in (0, 1):
        for key in keys:
            twin.on(f"of-{key}", "update", [key ^ changed], ones(1))
        twin.check()


def test_an_update_of_two_tables_of_one_layout_is_in_both_digests(open_twin):
    twin = open_twin(a=config(), b=config())
    for _ in range(2):  # from the second on only what has changed is hashed
        twin.update({name: ([1, 700], ones(2)) for name in "ab"})
        twin.check()
