"""The client library over a network that cuts its connections at any byte: applied exactly once."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from embstore_client import RemoteStore, connect
from tests.service.faults.ledger import ROWS, Ledger, gradients
from tests.service.faults.proxy import Proxy
from tests.service.faults.served import PATIENCE_S, Served

SEED = 20_261_121
ROUNDS = 60  # of each kind; a cut costs some 60 ms until the client is connected again
CALL_BYTES = 900
"""About what one update takes in both directions; a cut falls into one of the next calls."""


@pytest.fixture
def proxy(served: Served) -> Iterator[Proxy]:
    with Proxy(served.address) as made:
        yield made


@pytest.fixture
def far(proxy: Proxy) -> Iterator[RemoteStore]:
    with connect(proxy.address, timeout_s=PATIENCE_S) as store:
        yield store


@pytest.mark.parametrize("streamed", [False, True], ids=["unary", "streamed"])
def test_every_update_is_applied_once(
    streamed: bool,
    proxy: Proxy,
    far: RemoteStore,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sys.stdout.write(f"seed {SEED}\n")
    rng = np.random.default_rng([SEED, streamed])
    if streamed:
        monkeypatch.setattr("embstore_client.transport.UNARY_BYTES", 0)
        monkeypatch.setattr("embstore_proto.codec.CHUNK_BYTES", 199)
    for n in range(ROUNDS):
        proxy.cut_after(int(rng.integers(2 * CALL_BYTES)))
        ledger.acknowledged[n] = far.update(gradients(n)).command
        if n % 8 == 0:
            read: Any = far.lookup({"marks": [n], "rows": np.arange(ROWS)})
            assert read["marks"][0, 0] == -1.0
    assert proxy.cuts > ROUNDS // 4
