"""A trainer and its server are killed by SIGKILL, again and again: what is trained in the end is to
the bit what nobody disturbed.

A trainer that was killed begins at its last checkpoint, and the server, which goes on, forgets what
came after it. A server that was killed and started again is waited for by the trainer, which goes
on where it was.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch, which embstore does not depend on")

from tests.faults.forks import Child, Forks  # noqa: E402
from tests.frameworks.conftest import opening  # noqa: E402
from tests.frameworks.torch_trainer import Trainer, resume  # noqa: E402
from tests.frameworks.trainers import batches_of  # noqa: E402
from tests.service.faults.processes import ForkedServer  # noqa: E402
from tests.service.faults.served import PATIENCE_S  # noqa: E402

SEED, STEPS, KILLS = 20_261_125, 60, 12


def next_report(child: Child) -> Any:
    """Return a place, or the state in the end; None: the trainer has failed."""
    assert child.reports.poll(PATIENCE_S)
    try:
        return child.reports.recv()
    except EOFError:
        return None


def reports(child: Child, count: int) -> Any:
    """Return the state if it is among the next reports, else None."""
    for _ in range(count):
        report = next_report(child)
        assert report is not None, "the trainer has failed"
        if not isinstance(report, int):
            return report
    return None


def test_what_is_killed_at_any_moment_is_resumed_to_the_bit(forks: Forks, tmp_path: Path) -> None:
    with opening(tmp_path / "whole")() as store:
        whole = Trainer(store)
        whole.train(batches_of(STEPS))
        wanted = whole.state()
    rng = np.random.default_rng(SEED)
    server = ForkedServer(forks, tmp_path / "store", durability="commands")
    server.start()
    given = server.address, str(tmp_path), STEPS
    state, kills = None, 0
    while state is None:
        child = forks.start(resume, *given)
        if kills < KILLS and kills % 3 == 2:
            state = reports(child, int(rng.integers(1, 4)))
            server.kill()
            server.start()
        if kills < KILLS:
            state = state or reports(child, int(rng.integers(0, 5)))
            assert child.kill() == -9 or state is not None
        else:
            state = reports(child, STEPS + 1)
            assert child.wait() == 0
        kills += 1
    assert state == wanted
    server.stop()
