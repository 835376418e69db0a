"""Calls with arrays in a GPU's memory that are refused, before anything is sent where that can be
known."""

import sys
from typing import Any

import numpy as np
import pytest

from embstore.errors import (
    DeadlineError,
    InvalidArgumentError,
)
from embstore_client.device_area import opened_gpu
from tests.kernels.emulation.peer import EmulatedGpu
from tests.service.device.samples import DIM, GpuServer, Lent, Trainer, lookup_of
from tests.service.faults.losing import needs_compiler
from tests.serving import patient

pytestmark = needs_compiler

SMALL_BYTES = 16 << 20
"""In flight, of which half may be lent: four areas of the least size."""


def test_the_network_takes_arrays_of_the_host_alone(server: GpuServer, trainer: Trainer) -> None:
    keys = trainer.array(np.arange(10))
    with patient(server.address) as store:
        with pytest.raises(InvalidArgumentError, match="the connection is by gRPC"):
            store.lookup({"narrow": keys})
        assert store.lookup({"narrow": np.arange(10)})["narrow"].shape == (10, DIM)


def test_a_trainer_without_cupy_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "embstore_client.cupy_gpu", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InvalidArgumentError, match=r"expected CuPy.*pip install"):
        opened_gpu()


def test_rows_of_two_bytes_are_of_the_host(server: GpuServer, trainer: Trainer) -> None:
    with patient(f"unix:{server.socket}", wire_dtype="float16") as store:
        with pytest.raises(InvalidArgumentError, match="wire_dtype"):
            store.lookup({"narrow": trainer.array(np.arange(10))})


def test_verbs_that_copy_to_the_host_refuse(server: GpuServer, trainer: Trainer) -> None:
    keys, rows = trainer.array(np.arange(10)), trainer.array(np.ones((10, DIM), np.float32))
    for call in (
        lambda: trainer.table("narrow").assign(keys, rows),
        lambda: trainer.table("narrow").read_rows(keys),
        lambda: trainer.table("narrow").read_rows(np.arange(10), out=(rows, rows)),
        lambda: trainer.table("narrow").update_ranks([(keys, rows)]),
    ):
        with pytest.raises(InvalidArgumentError, match=r"of the host|out to be"):
            call()


@pytest.mark.parametrize("settings", [{"inflight_bytes_max": SMALL_BYTES}], indirect=True)
def test_a_full_loan_is_refused_until_rows_are_dropped(server: GpuServer, trainer: Trainer) -> None:
    keys = np.arange(10)
    kept = [trainer.table("wide").lookup(trainer.array(keys)) for _ in range(4)]
    assert Lent.of(server)[1] == SMALL_BYTES // 2
    with pytest.raises(DeadlineError, match="shared with clients"):
        trainer.store.executor.execute(lookup_of(trainer, keys), timeout_s=0.3)
    kept.pop()
    trainer.table("wide").lookup(trainer.array(keys))


def test_outputs_that_do_not_fit_are_refused_before_anything_is_sent(
    server: GpuServer, trainer: Trainer, gpu: EmulatedGpu
) -> None:
    device, keys = trainer.table("narrow"), trainer.array(np.arange(10))
    read_only = trainer.out(10, DIM)
    interface = read_only.__cuda_array_interface__
    interface["data"] = (interface["data"][0], True)
    wrong: list[tuple[Any, str]] = [
        (trainer.out(9, DIM), "shape"),
        (trainer.out(10, DIM + 1), "shape"),
        (trainer.array(np.zeros((10, DIM))), "float32"),
        (np.zeros((10, DIM), np.float32), "one on the host"),
        (read_only, "read-only"),
    ]
    for out, match in wrong:
        with pytest.raises(InvalidArgumentError, match=match):
            device.lookup(keys, out=out)
    with pytest.raises(InvalidArgumentError, match="int64"):
        device.lookup(trainer.array(np.arange(10, dtype=np.int32)))
    assert gpu.opened == 0


def test_a_call_that_is_too_large_is_refused(server: GpuServer, trainer: Trainer) -> None:
    keys = trainer.array(np.arange(10))
    keys.shape = (1 << 34,)
    keys.__cuda_array_interface__["shape"] = keys.shape
    with pytest.raises(InvalidArgumentError, match="split the call"):
        trainer.table("narrow").lookup(keys)
