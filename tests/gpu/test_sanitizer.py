"""compute-sanitizer finds nothing in any verb of the device."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on the PATH"
    ),
]

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 240
FOUND = 99


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_sanitizer_finds_nothing(tool):
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND)]
    command += [sys.executable, "-m", "tests.gpu.every_verb"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    output = done.stdout + done.stderr
    if "Device not supported" in output:
        pytest.skip("compute-sanitizer does not support the device here")
    assert done.returncode == 0, output
