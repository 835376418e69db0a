"""However a step is trained, and of whatever kind of run it is, it is what plain calls with these
keys and gradients do."""

import pytest

from tests.conformance.cases import OPTIMIZERS, config, generator
from tests.conformance.hotness.hotcold import chunks_of, hotcold_twin, run_of
from tests.conformance.sessions.ways import WAYS
from tests.conformance.traces import zipf_keys

TABLES = {
    kind: config(dim=dim, rows=900, optimizer=OPTIMIZERS[kind])
    for kind, dim in {"rowwise_adagrad": 12, "adam": 5}.items()
}


@pytest.mark.parametrize("waits", ["late", "none"])
def test_every_way_in_a_session(open_twin, waits):
    twin, rng = open_twin(**TABLES), generator(844)
    batches = [{name: zipf_keys(rng, 900, 120) for name in TABLES} for _ in range(48)]
    with twin.store.session([*TABLES], waits=waits, lookahead=4) as run:
        for step in run.steps(batches, lambda keys: keys):
            WAYS[step.number % len(WAYS)](twin, step, step.batch, rng)
    twin.check()


def test_every_way_in_hot_and_in_mixed_phases(open_twin):
    twin, rng, seen = hotcold_twin(open_twin), generator(929), set()
    with run_of(twin.store) as run:
        for step in run.steps(chunks_of(rng, 1600)):
            way = WAYS[rng.integers(len(WAYS))]
            way(twin, step, step.keys, rng)
            seen.add((step.is_hot, way))
        assert run.last_step == run.stats()["mixed_batches"] > 0
    assert len(seen) == 2 * len(WAYS)
