"""Servers with a page: one that is trained through, and one that asks for tokens."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from embstore_client import connect
from embstore_server.setup.launch import ServerProcess
from tests.page.trainer import PATIENCE_S, make_tables
from tests.service.access.tenants import token_of, write_tokens
from tests.style.sources import ROOT

TRAINED = ("--cache-bytes", "8MiB", "--count-rate", "1", "--slow-call-ms", "0.5")
"""Of the server that is looked at: rows are evicted, accesses counted, and calls soon slow."""


@contextmanager
def training(address: str) -> Iterator[None]:
    """Have a process train through a server inside."""
    command = [sys.executable, "-m", "tests.page.trainer", address]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "training\n"
        yield
        process.stdin.close()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that a session trains through."""
    with ServerProcess(tmp_path_factory.mktemp("trained") / "store", *TRAINED) as server:
        with training(server.address):
            yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with tokens and tables, that nobody trains through."""
    path = tmp_path_factory.mktemp("guarded")
    tokens = write_tokens(path / "tokens")
    with ServerProcess(path / "store", "--tokens", str(tokens)) as server:
        with connect(server.address, timeout_s=PATIENCE_S, token=token_of("operator")) as store:
            make_tables(store)
        yield server
