"""Trainers that are killed in the middle of an update: it is applied, or it is not."""

import sys

import numpy as np

from tests.faults.forks import Forks
from tests.service.faults.ledger import Ledger, gradients
from tests.service.faults.processes import train
from tests.service.faults.served import PATIENCE_S, Served, sockets, until

SEED = 20_261_124
KILLS = 10
NUMBERS = 100
"""Of updates that one trainer has; it is killed long before it has sent as many."""


def test_killed_trainers_leave_nothing_half_done(
    forks: Forks, served: Served, ledger: Ledger
) -> None:
    sys.stdout.write(f"seed {SEED}\n")
    rng = np.random.default_rng(SEED)
    before = sockets()
    with served.connect() as healthy:
        for kill in range(KILLS):
            first = kill * NUMBERS
            trainer = forks.start(train, served.address, first)
            told = []
            for _ in range(int(rng.integers(1, 12))):
                assert trainer.reports.poll(PATIENCE_S)
                told.append(trainer.reports.recv())
            assert trainer.kill() == -9
            told += trainer.remaining()
            trainer.reports.close()
            ledger.acknowledged |= dict(told)
            ledger.unknown.add(told[-1][0] + 1)
            last = first + NUMBERS - 1
            ledger.acknowledged[last] = healthy.update(gradients(last)).command
    served.assert_idle()
    until(lambda: sockets() <= before)
    assert served.service.replay.remembered_calls <= 3 * (KILLS + 1)
