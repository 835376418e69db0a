"""A served store on an emulated GPU, and a trainer with an emulated GPU of its own; at the end
nothing is lent, and nothing open."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embstore_client import device_segment
from tests.kernels.emulation.peer import EmulatedGpu
from tests.service.device.samples import NOTHING_LENT, PATIENCE_S, GpuServer, Lent, Trainer
from tests.service.faults.served import until
from tests.serving import patient

LOOKS = 3
"""How often a server finds that a client's copies are not there yet."""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedGpu]:
    made = EmulatedGpu(LOOKS)
    monkeypatch.setattr(device_segment, "opened_gpu", lambda: made)
    yield made
    gc.collect()
    assert not made.open_segments, "what was opened is closed"
    made.runtime.close()


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> Any:
    """What a test has its server set to."""
    return getattr(request, "param", {})


@pytest.fixture
def server(tmp_path: Path, settings: Any, gpu: EmulatedGpu) -> Iterator[GpuServer]:
    with GpuServer(tmp_path / "store", socket=str(tmp_path / "socket"), **settings) as made:
        yield made
        gc.collect()
        until(lambda: Lent.of(made) == NOTHING_LENT, PATIENCE_S)
    made.runtime.memories.check_guards(everywhere=True)


@pytest.fixture
def trainer(server: GpuServer, gpu: EmulatedGpu) -> Iterator[Trainer]:
    with patient(f"unix:{server.socket}") as store:
        yield Trainer(store, gpu)
