"""Epochs as a connection goes by them."""

from contextlib import nullcontext
from typing import Any

import pytest

from embstore.errors import OutcomeUnknownError
from embstore.results import EPOCH_STEP, Context
from embstore_client.origins import Origins


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize(("before", "crashes"), [(1, 0), (1, 1), (2, 0), (1 + EPOCH_STEP, 0)])
def test_who_promotes_is_told_of_lost_commands_alone(before, crashes, steps):
    """Of a crash before the promotion, and of another promotion in place of the known one."""
    epoch, is_told = before + crashes + steps * EPOCH_STEP, (before, crashes) != (1, 0)
    origins = Origins()
    origins.read(Context("store", 1, 7))
    with origins.beginning_epoch():
        origins.read(Context("store", epoch, 7))  # another thread's call
        origins.promoted(before, epoch)
    told: Any = pytest.raises(OutcomeUnknownError) if is_told else nullcontext()
    with told:
        origins.read(Context("store", epoch, 7))
    assert origins.begin(deadline=0.0).epoch == (1 if is_told else epoch)


@pytest.mark.parametrize("epoch", [3, 7, 9])
def test_who_reads_is_told_of_another_epoch_once_and_not_by_late_replies(epoch):
    """A store that was restored from a backup, or a standby of it, can be in a lower epoch."""
    origins = Origins()
    origins.read(Context("store", 5, 7))
    with pytest.raises(OutcomeUnknownError, match=f"in epoch {epoch}, .* of epoch 5"):
        origins.read(Context("store", epoch, 7))
    for late in (epoch, 5, epoch):
        origins.read(Context("store", late, 7))
    with pytest.raises(OutcomeUnknownError):
        origins.read(Context("store", 4, 7))


def test_a_reply_that_is_late_after_a_refused_call_tells_nothing():
    origins = Origins()
    origins.read(Context("store", 5, 7))
    origins.changed_epoch()
    origins.read(Context("store", 3, 7))
    origins.read(Context("store", 5, 7))
    origins.read(Context("store", 3, 7))
