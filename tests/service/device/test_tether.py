"""The tether of a GPU's memory ends after that is closed, whoever closes it, and in no fork."""

import gc
import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from embstore.device.runtime import EXPORTED_MULTIPLE_BYTES
from embstore_client.device_segment import DeviceSide
from embstore_proto import device_segment as frames
from embstore_proto.device_segment import Handles
from embstore_proto.shared_memory import HEAD_BYTES
from tests.kernels.emulation.peer import EmulatedGpu
from tests.kernels.emulation.runtime import EmulatedRuntime


class Server:
    """Memory, and the other end of its tether."""

    def __init__(self) -> None:
        self.runtime = EmulatedRuntime()
        self._memory = self.runtime.allocate(EXPORTED_MULTIPLE_BYTES, np.uint8)
        exported = self.runtime.export(self._memory)
        size, memory, event = EXPORTED_MULTIPLE_BYTES, exported.memory, exported.event_handle
        self.body = frames.segment(Handles(size, memory, event, exported.gpu))[HEAD_BYTES:]
        self.tether, given = socket.socketpair()
        self.tether.setblocking(False)
        self.given = given.detach()

    @property
    def has_ended(self) -> bool:
        """Whether the tether has ended."""
        try:
            return self.tether.recv(1) == b""
        except BlockingIOError:
            return False


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with made.tether:
        yield made


@pytest.fixture
def side(server: Server, gpu: EmulatedGpu) -> DeviceSide:
    made = DeviceSide()
    made.take(server.body, server.given)
    return made


def test_a_side_that_nobody_refers_to_is_closed_before_its_tether_ends(server, gpu):
    """Also one of a cycle, whose members Python finalizes in any order."""
    made = [DeviceSide()]
    made.append(made)  # type: ignore[arg-type]
    made[0].take(server.body, server.given)
    del made
    gc.collect()
    assert not gpu.open_segments and server.has_ended


def test_a_fork_leaves_what_is_open_to_its_parent(server, side, gpu, monkeypatch):
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: -1)
        side.close()
        assert gpu.open_segments and not server.has_ended
    side.close()
    assert server.has_ended


def test_a_tether_ends_where_the_memory_cannot_be_opened(server, gpu):
    made = DeviceSide()
    with pytest.raises(KeyError):
        made.take(server.body.replace(b"memory", b"nobody"), server.given)
    assert server.has_ended and made.segment is None
