"""A module in a process that was forked, as the worker of a loader: it connects by itself."""

import os
from multiprocessing.connection import Connection as Reports
from typing import Any

import numpy as np
import pytest

from embstore import Constant, Sgd, Uniform
from embstore.errors import InvalidArgumentError
from embstore.handles.store import Store
from embstore_client.frameworks.connection import Connection
from tests.faults.forks import Forks
from tests.serving import Server, patient

ROWS = 40


def in_fork(work: Any) -> Any:
    """Return what `work` returns in a forked process."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.write(writing, str(work()).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as answer:
        said = answer.read()
    os.waitpid(process, 0)
    return said


def look_up(reports: Reports, address: str, transport: str) -> None:
    with patient(address, transport=transport) as store:
        table = store.create_table(
            "t", dim=2, rows=9, optimizer=Sgd(0.1), initializer=Constant(2.0)
        )
        connection = Connection(store)
        connection._lock.acquire()  # by another thread, as far as the child can know

        def of_child() -> str:
            own = connection.store
            return f"{own is store} {own.table('t').lookup([1, 2]).sum()} {own!r}"

        reports.send(in_fork(of_child))
        connection._lock.release()
        assert connection.store is store
        assert table.lookup([1]).sum() == 4


@pytest.mark.parametrize(("transport", "place"), [("grpc", "127.0.0.1:"), ("auto", "unix:")])
def test_a_forked_process_has_a_connection_of_its_own(
    forks: Forks, server: Server, transport: str, place: str
) -> None:
    child = forks.start(look_up, server.address, transport)
    assert child.wait() == 0
    (said,) = child.remaining()
    assert said.startswith("False 8.0 ")
    assert place in said


def be_refused(reports: Reports, address: str) -> None:
    with patient(address) as store:
        connection = Connection(store)
        os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

        def of_child() -> str:
            with pytest.raises(InvalidArgumentError) as refused:
                _ = connection.store
            return str(refused.value)

        reports.send(in_fork(of_child))


def test_a_fork_that_grpc_does_not_bear_is_refused(forks: Forks, server: Server) -> None:
    child = forks.start(be_refused, server.address)
    assert child.wait() == 0
    (said,) = child.remaining()
    assert said.startswith("GRPC_ENABLE_FORK_SUPPORT=0 is set") and "unset it" in said


def load(reports: Reports, address: str, transport: str) -> None:
    import torch

    from embstore_client.torch import Embedding
    from tests.frameworks.worker_dataset import Activations

    torch.set_num_threads(1)
    options = {"dim": 4, "rows": ROWS, "optimizer": Sgd(0.1), "initializer": Uniform(-1, 1)}
    with patient(address, transport=transport) as store:
        module = Embedding(store, "t", **options)
        wanted = torch.from_numpy(store.table("t").lookup(np.arange(ROWS)))
        loader = torch.utils.data.DataLoader(
            Activations(module, ROWS), batch_size=8, num_workers=2, multiprocessing_context="fork"
        )
        for _ in range(2):  # the workers of a loader are new in each epoch
            torch.testing.assert_close(torch.cat(list(loader)), wanted)
        assert store.table("t").lookup([1]).shape == (1, 4)
        module.train()
        module(torch.tensor([1])).sum().backward()
        assert module.step() is not None
        reports.send("loaded")


@pytest.mark.parametrize("transport", ["grpc", "auto"])
def test_forked_workers_of_a_loader_may_have_a_module(
    forks: Forks, server: Server, transport: str
) -> None:
    pytest.importorskip("torch", reason="needs torch")
    child = forks.start(load, server.address, transport)
    assert child.wait() == 0
    assert child.remaining() == ["loaded"]


def test_a_forked_process_has_no_embedded_store(embedded: Store, forks: Forks) -> None:
    connection = Connection(embedded)
    connection.forked()
    assert connection.store is embedded  # whose calls say whose it is
