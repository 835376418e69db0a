"""Where frameworks are installed, the client loads none before its adapter is imported."""

import subprocess
import sys

import pytest

from tests.style.sources import ROOT

FRAMEWORKS = ("torch", "jax")

LOADED = """if True:
    import sys
    import embstore_client, embstore_training.run
    from embstore import Store
    from embstore_client import connect
    print("{name}" in sys.modules)
"""


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_importing_the_client_loads_no_framework(name: str) -> None:
    pytest.importorskip(name, reason=f"needs {name}, which embstore does not depend on")
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(name=name)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
