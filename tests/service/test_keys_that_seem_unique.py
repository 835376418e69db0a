"""Calls of many keys of which the first are distinct: none is looked for twice, all are right."""

from typing import Any

import numpy as np
import pytest

import embstore
from embstore import RowWiseAdagrad, Uniform
from embstore_client import shares
from embstore_client.shares import once_each
from tests.serving import Server, patient

ROWS, DIM = 20_000, 8
FIRST = np.random.default_rng(5).permutation(ROWS)[:9000]
KEYS = {
    "all distinct": FIRST,
    "repeated later": np.concatenate([FIRST, FIRST[::3], FIRST[:10]]),
    "repeated at once": np.concatenate([FIRST[:7], FIRST]),
    "few": np.concatenate([FIRST[:5000], FIRST[:5000]])[: 2 * shares._SAMPLE_KEYS - 1],
}


def test_only_many_keys_whose_first_are_distinct_are_taken_as_they_are():
    as_they_are = {name: once_each(keys)[1] is None for name, keys in KEYS.items()}
    assert as_they_are == {
        "all distinct": True,
        "repeated later": True,
        "repeated at once": False,
        "few": False,
    }


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_rows_digest_and_accesses_are_those_of_the_embedded_store(keys, tmp_path):
    def opened(name: str) -> embstore.Store:
        return embstore.open(tmp_path / name, cache_bytes=4 << 20)

    def lived(store: embstore.Store) -> Any:
        table = store.create_table(
            "t", dim=DIM, rows=ROWS, optimizer=RowWiseAdagrad(0.1), initializer=Uniform(-1, 1)
        )
        rng = np.random.default_rng(6)
        for _ in range(2):
            table.update(keys, rng.standard_normal((len(keys), DIM), dtype=np.float32))
        rows = table.lookup(keys)
        (pool,) = store.stats()["cache"]["pools"]
        return rows.tobytes(), table.digest(), pool["accesses"], pool["access_hits"]

    with opened("embedded") as store:
        expected = lived(store)
    server = Server(lambda: opened("served"), tmp_path / "served")
    with server, patient(server.address) as store:
        assert lived(store) == expected
