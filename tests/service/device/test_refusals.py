"""Calls with arrays in a GPU's memory that are refused, before anything is sent where that can be
known."""

import sys
from typing import Any

import numpy as np
import pytest

from embstore import commands as c
from embstore.errors import CapacityError, DeadlineError, InvalidArgumentError, StepNotFoundError
from embstore.handles.sessions import BagGradients, StepBags
from embstore.sharding import ShardMap
from embstore_client import device_segment
from embstore_client.device_segment import opened_gpu
from embstore_client.shards.router import Router
from tests.service.device.samples import DIM, Lent, lookup_of, make_tables
from tests.service.faults.losing import needs_compiler
from tests.service.faults.served import Served
from tests.serving import patient

pytestmark = needs_compiler

SMALL_BYTES = 16 << 20
"""In flight, of which half may be lent: four segments of the least size."""


def test_the_network_takes_arrays_of_the_host_alone(server, trainer):
    keys = trainer.array(np.arange(10))
    with patient(server.address) as store:
        with pytest.raises(InvalidArgumentError, match="this connection is by gRPC"):
            store.lookup({"narrow": keys})
        assert store.lookup({"narrow": np.arange(10)})["narrow"].shape == (10, DIM)


def test_a_trainer_without_cupy_is_told_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "embstore_client.cupy_gpu", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(InvalidArgumentError, match=r"expected CuPy.*pip install"):
        opened_gpu()


def test_rows_of_two_bytes_are_of_the_host(server, trainer):
    with patient(f"unix:{server.socket}", wire_dtype="float16") as store:
        with pytest.raises(InvalidArgumentError, match="wire_dtype"):
            store.lookup({"narrow": trainer.array(np.arange(10))})


def test_verbs_that_copy_to_the_host_refuse(server, trainer):
    keys, rows = trainer.array(np.arange(10)), trainer.array(np.ones((10, DIM), np.float32))
    for call in (
        lambda: trainer.table("narrow").assign(keys, rows),
        lambda: trainer.table("narrow").read_rows(keys),
        lambda: trainer.table("narrow").read_rows(np.arange(10), out=(rows, rows)),
        lambda: trainer.table("narrow").update_ranks([(keys, rows)]),
    ):
        with pytest.raises(InvalidArgumentError, match=r"of the host|out to be"):
            call()


# Rows of steps


def refuses_device_rows(store: Any, match: str, keys: Any) -> None:
    """Check that rows of steps are refused on the device, and nothing else; with rows="auto" they
    come to the host then."""
    sessions = store.sessions
    assert not sessions.reaches_device
    with pytest.raises(InvalidArgumentError, match=rf"found rows='device': .*{match}"):
        with store.session(["narrow"], rows="device"):
            pass
    sessions.open("s", ["narrow"])
    member = sessions.join("s", 0).member
    sessions.announce(member, {1: {"narrow": np.arange(10)}})
    bags = {"narrow": StepBags(np.arange(10, dtype=np.int32))}
    for look_up in (
        lambda: sessions.lookup_step(member, 1, on_device=True),
        lambda: sessions.lookup_step_pooled(member, 1, bags, on_device=True),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            look_up()
    expected = sessions.lookup_step(member, 1)["narrow"].copy()
    sessions.close(member)
    with store.session(["narrow"]) as run:
        for step in run.steps([keys], lambda batch: {"narrow": batch}):
            rows = step.lookup()["narrow"]
            assert isinstance(rows, np.ndarray) and np.array_equal(rows, expected)
            step.release()


@pytest.mark.parametrize("options", [{"transport": "grpc"}, {"wire_dtype": "float16"}])
def test_rows_of_steps_go_where_memory_is_shared_and_nothing_rounded(server, trainer, options):
    match = "this connection is by gRPC" if "transport" in options else "wire_dtype"
    with patient(server.address, **({"transport": "auto"} | options)) as store:
        refuses_device_rows(store, match, trainer.array(np.arange(10)))


def test_rows_of_steps_need_cupy(server, trainer, monkeypatch):
    monkeypatch.delitem(sys.modules, "embstore_client.cupy_gpu", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(device_segment, "opened_gpu", opened_gpu)
    refuses_device_rows(trainer.store, "expected CuPy.*pip install", trainer.array(np.arange(10)))


def test_rows_of_steps_need_memory_that_can_be_opened(server, trainer, gpu, monkeypatch):
    """As from a container that has an IPC namespace of its own."""

    def refuse(*_: Any) -> None:
        raise InvalidArgumentError("CUDA does not open the memory of the server's GPU")

    keys = trainer.array(np.arange(10))
    monkeypatch.setattr(gpu, "open", refuse)
    refuses_device_rows(trainer.store, "CUDA does not open", keys)


def test_rows_of_steps_need_a_server_that_can_export_memory(server, trainer, monkeypatch):
    def export(_: Any) -> None:
        raise CapacityError("the driver does not export memory")

    monkeypatch.setattr(server.runtime, "export", export)
    assert not trainer.store.sessions.reaches("cuda:0")
    with pytest.raises(CapacityError, match="does not export"):
        trainer.store.sessions.check_device()
    keys = trainer.array(np.arange(10))
    with trainer.store.session(["narrow"]) as run:
        for step in run.steps([keys], lambda batch: {"narrow": batch}):
            assert isinstance(step.lookup()["narrow"], np.ndarray)
            step.release()


def test_rows_of_steps_of_a_server_on_the_cpu_come_to_the_host(tmp_path, gpu):
    with Served(tmp_path / "store", socket=str(tmp_path / "socket")) as served:
        served.on_engine(make_tables)
        with patient(f"unix:{served.socket}") as store:
            refuses_device_rows(store, "the rows are on cpu", gpu.array(np.arange(10)))


def test_another_gpu_than_the_servers_is_told_before_anything_is_opened_there(server, trainer, gpu):
    sessions = trainer.store.sessions
    assert not sessions.reaches("cuda:1") and gpu.opened == 0
    assert sessions.reaches("cuda:0") and gpu.opened == 1
    assert not sessions.reaches("cuda:1")
    with pytest.raises(InvalidArgumentError, match=r"on cuda:0, .* found them on cuda:1"):
        sessions.check_device("cuda:1")


def test_rows_of_several_shards_come_to_the_host(server, trainer):
    one = ShardMap.even("c", ["a:1", "b:2"])
    router = Router([trainer.store.executor] * 2, one)
    command = c.LookupStep("m" * 32, 1)
    with pytest.raises(InvalidArgumentError, match="of 2 shards are joined"):
        router.execute(command, out=c.ON_DEVICE)
    alone = Router([trainer.store.executor], ShardMap.even("c", ["a:1"]))
    alone.check_device()


def test_rows_of_steps_are_new_where_they_are_on_the_device(server, trainer):
    sessions, out = trainer.store.sessions, {"narrow": np.empty((10, DIM), np.float32)}
    with pytest.raises(InvalidArgumentError, match="found both"):
        sessions.lookup_step("m" * 32, 1, out=out, on_device=True)
    with pytest.raises(InvalidArgumentError, match="waits='none'"):
        trainer.store.session(["narrow"], waits="none", rows="device")
    assert sessions.reaches_device


def test_what_is_wrong_with_a_step_is_said_as_ever(server, trainer):
    """A lookup, or an update, that is refused leaves the step as it was."""
    sessions = trainer.store.sessions
    sessions.open("s", ["narrow", "wide"])
    member = sessions.join("s", 0).member
    with pytest.raises(StepNotFoundError, match="found 1"):
        sessions.lookup_step(member, 1, on_device=True)
    keys = np.arange(20, 30)
    sessions.announce(member, {1: {"narrow": keys}})
    inverse = StepBags(np.array([3, 10], np.int32))
    for name, match in (("wide", "no table 'wide'"), ("narrow", r"inverse in \[0, 10\)")):
        with pytest.raises(InvalidArgumentError, match=match):
            sessions.lookup_step_pooled(member, 1, {name: inverse}, on_device=True)
    grads = np.ones((2, DIM), np.float32)
    wrong: list[tuple[Any, str]] = [
        (BagGradients(inverse, trainer.array(grads)), r"inverse in \[0, 10\)"),
        (BagGradients(StepBags(inverse.inverse[:1]), trainer.array(grads)), "each of 1 occ"),
        (BagGradients(StepBags(np.zeros(2, np.int32)), trainer.array(grads[:, 1:])), "of shape"),
    ]
    grads[1, 1] = np.inf
    wrong.append((BagGradients(StepBags(np.array([1, 3], np.int32)), trainer.array(grads)), "23"))
    for given, match in wrong:
        with pytest.raises(InvalidArgumentError, match=match):
            sessions.update_step(member, 1, {"narrow": given})
    found = sessions.lookup_step(member, 1, on_device=True)["narrow"].content()
    assert np.array_equal(found, trainer.table("narrow").lookup(keys))
    sessions.close(member)


@pytest.mark.parametrize("settings", [{"inflight_bytes_max": SMALL_BYTES}], indirect=True)
def test_a_full_loan_is_refused_until_rows_are_dropped(server, trainer):
    keys = np.arange(10)
    kept = [trainer.table("wide").lookup(trainer.array(keys)) for _ in range(4)]
    assert Lent.of(server)[1] == SMALL_BYTES // 2
    with pytest.raises(DeadlineError, match="shared with clients"):
        trainer.store.executor.execute(lookup_of(trainer, keys), timeout_s=0.3)
    kept.pop()
    trainer.table("wide").lookup(trainer.array(keys))


def test_outputs_that_do_not_fit_are_refused_before_anything_is_sent(server, trainer, gpu):
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


def test_a_call_that_is_too_large_is_refused(server, trainer):
    keys = trainer.array(np.arange(10))
    keys.shape = (1 << 34,)
    keys.__cuda_array_interface__["shape"] = keys.shape
    with pytest.raises(InvalidArgumentError, match="split the call"):
        trainer.table("narrow").lookup(keys)
