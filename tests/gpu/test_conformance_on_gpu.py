"""The dense reference and the device, bit by bit: hot keys in chunks, and rows of every width.

All else of tests/conformance runs on the device too.
"""

import numpy as np
import pytest

from embstore.config import Normal
from tests.conformance.cases import OPTIMIZERS, generator
from tests.conformance.traces import values
from tests.conformance.twin import bits, digests
from tests.reference import ReferenceStore

pytestmark = pytest.mark.gpu

DIMS = (1, 7, 32, 128, 160)
HOT_OCCURRENCES = 5000
"""Of one key: more than 64 chunks, whose sums are added in their order."""


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_with_hot_keys_is_the_references(backend, optimizer, dim):
    rng = generator(dim)
    config = {"dim": dim, "rows": 3000, "optimizer": optimizer, "initializer": Normal(0.0, 0.1)}
    store, reference = backend.open_store(cache_bytes=4 << 20), ReferenceStore()
    for one in (store, reference):
        one.create_table("t", **config)
    for _ in range(3):
        keys = rng.integers(0, config["rows"], 2000)
        keys = rng.permutation(np.concatenate([keys, np.full(HOT_OCCURRENCES, 17)]))
        gradients = values(rng, len(keys), dim)
        found, wanted = (one.table("t").lookup(keys) for one in (store, reference))
        assert bits(found) == bits(wanted)
        for one in (store, reference):
            one.table("t").update(keys, gradients)
    assert digests(store) == digests(reference)
    store.close()
    reopened = backend.open_store(cache_bytes=1 << 20)
    assert digests(reopened) == digests(reference)
