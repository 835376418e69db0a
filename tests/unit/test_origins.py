"""Epochs as a connection goes by them."""

from contextlib import nullcontext
from typing import Any

import pytest

from embstore.errors import OutcomeUnknownError
from embstore.results import EPOCH_STEP, Context
from embstore_client.origins import Origins


@pytest.mark.parametrize(("epoch", "is_told"), [(1 + EPOCH_STEP, False), (2 + EPOCH_STEP, True)])
def test_who_promotes_is_told_of_lost_commands_alone(epoch, is_told):
    origins = Origins()
    origins.read(Context("store", 1, 7))
    with origins.beginning_epoch():
        origins.read(Context("store", epoch, 7))  # another thread's call
        origins.promoted(epoch)
    told: Any = pytest.raises(OutcomeUnknownError) if is_told else nullcontext()
    with told:
        origins.read(Context("store", epoch, 7))
    assert origins.begin(deadline=0.0).epoch == (1 if is_told else epoch)
