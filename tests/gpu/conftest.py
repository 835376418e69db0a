"""Skips what is here where there is no CUDA device; a runtime and a backend where there is one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.backend import OnGpu, why_not


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*offers): as in tests/conformance, whose cases run")


@pytest.fixture(autouse=True, scope="session")
def gpu() -> None:
    """Skip every test where there is no device."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def runtime(gpu: None) -> Iterator[Any]:
    from embstore.device.cuda import open_runtime

    opened = open_runtime(0)
    yield opened
    opened.close()


@pytest.fixture
def backend(gpu: None, tmp_path: Path) -> Iterator[OnGpu]:
    made = OnGpu(tmp_path)
    yield made
    made.close()
