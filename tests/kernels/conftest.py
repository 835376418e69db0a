"""Every test of kernels ends with a look at all guards of all emulated devices."""

from collections.abc import Iterator

import pytest

from tests.kernels.emulation.runtime import RUNTIMES


@pytest.fixture(autouse=True)
def _guards() -> Iterator[None]:
    yield
    for runtime in list(RUNTIMES):
        runtime.memories.check_guards(everywhere=True)
