"""Training loops whose server is killed, and not started again.

`rank_timeout_ms` is for other ranks: a trainer that has none is told as soon as the connection's
`timeout_s` says, by one error, and its log is short.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

from embstore.config import Constant, Sgd
from embstore.errors import DeadlineError
from embstore_client import connect
from tests.faults.forks import Forks
from tests.service.faults.processes import ForkedServer

TIMEOUT_S, RANK_TIMEOUT_MS = 4.0, 3_600_000
PATIENT_S = 300.0
"""Far below what ranks wait for one another, and far above what any machine takes."""

DOES: dict[str, Callable[[Any], Any]] = {
    "lookup": lambda step: step.lookup(),
    "pooled lookup": lambda step: step.lookup_pooled({"a": [0, 10]}),
    "update": lambda step: step.update({"a": np.ones((10, 4), np.float32)}),
    "release": lambda step: step.release(),
}


@pytest.mark.parametrize(
    ("transport", "does"), [*(("grpc", does) for does in DOES), ("shared_memory", "update")]
)
def test_a_trainer_without_other_ranks_is_told_of_a_dead_server(
    forks: Forks,
    quick_path: Path,
    caplog: pytest.LogCaptureFixture,
    transport: str,
    does: str,
) -> None:
    server = ForkedServer(forks, quick_path / "store", durability="commands")
    server.start()
    killed_at = 0.0
    with connect(server.address, timeout_s=TIMEOUT_S, transport=transport) as store:
        store.create_table("a", dim=4, rows=99, optimizer=Sgd(0.1), initializer=Constant(1.0))
        with (
            caplog.at_level(logging.INFO),
            pytest.raises(DeadlineError) as told,
            store.session(["a"], lease_ms=600, rank_timeout_ms=RANK_TIMEOUT_MS) as run,
        ):
            for step in run.steps(range(50), keys=lambda n: {"a": np.arange(n, n + 10)}):
                if step.number == 4:
                    server.kill()
                    killed_at = monotonic()
                    DOES[does](step)
                step.update({"a": step.lookup()["a"]})
    assert monotonic() - killed_at < PATIENT_S
    assert server.address in str(told.value)
    lines = [
        line for record in caplog.records for line in caplog.handler.format(record).split("\n")
    ]
    assert len(lines) <= 2, lines
