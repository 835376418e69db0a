"""The dense reference and the device: what is read, and the digests, bit by bit.

The traces are those of tests/conformance, and so is the test of one digest, which runs here as it
is on stores of the device. What a small trace cannot show is added: hot keys cut into chunks, rows
of every width, and calls larger than the cache.
"""

import numpy as np
import pytest

from embstore.config import Normal
from tests.conformance.cases import OPTIMIZERS, generator
from tests.conformance.replay import creations, expect, random_commands, read_bits
from tests.conformance.test_one_digest import (
    test_one_digest_whatever_happens_between_commands,  # noqa: F401  collected here again
)
from tests.conformance.traces import TABLES, smallest_cache, values
from tests.conformance.twin import bits, digests
from tests.reference import ReferenceStore

pytestmark = pytest.mark.gpu

DIMS = (1, 7, 32, 128, 160)
HOT_OCCURRENCES = 5000
"""Of one key: more than 64 chunks, whose sums are added in their order."""


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("room", [1.0, 1.5, 100.0])
def test_random_commands_read_and_leave_what_the_reference_has(backend, policy, room):
    rng = generator(int(room * 10))
    commands = creations(TABLES) + random_commands(rng, TABLES, 3)
    reads, wanted = expect(commands)
    cache_bytes = int(smallest_cache(backend, TABLES) * room)
    store = backend.open_store(cache_bytes=cache_bytes, policy=policy)
    for number, command in enumerate(commands):
        assert read_bits(command(store)) == reads[number], f"command {number}"
    store.check_integrity()
    assert digests(store) == wanted


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_with_hot_keys_is_the_references(backend, optimizer, dim):
    rng = generator(dim)
    config = {
        "dim": dim,
        "rows": 3000,
        "optimizer": optimizer,
        "initializer": Normal(0.0, 0.1),
    }
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
