"""Kernels compiled ahead are taken if sources, Numba and processor are the same."""

import os
import re
import shutil
import subprocess
import sys

import numba
import pytest

from embstore.arithmetic import cached
from embstore_tools.commands.compile import kernels
from tests.strange_files import listing, strew
from tests.style.sources import ROOT

pytestmark = pytest.mark.skipif(
    not cached.is_of_level(), reason=f"this processor is not of level {cached.CPU}"
)

KERNEL = "embstore.storage.cold.count_absent"
STAMP = cached.stamp(ROOT / "embstore" / "storage")
PROGRAM = f"""
import sys
from pathlib import Path
from embstore.arithmetic import cached
from embstore_tools.commands.compile import kernels

cached.PORTABLE = Path(sys.argv[1])
entry = kernels()["{KERNEL}"].compile()
print(sum(entry._cache_hits.values()), sum(entry._cache_misses.values()))
"""


def run(folder, **variables: str) -> str:
    """Run the program, with portable code in a folder, and nothing else compiled."""
    variables |= {"NUMBA_CACHE_DIR": str(folder / "own"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


LOADED, COMPILED = "1 0", "0 1"


def test_another_process_takes_what_was_compiled_ahead(tmp_path, tmp_path_factory):
    strew(tmp_path, tmp_path_factory.mktemp("outside"))
    before = listing(tmp_path)
    run(tmp_path, **cached.VARIABLES)
    (made,) = tmp_path.glob("*.nbc")
    assert {**listing(tmp_path), made.name: None} == {**before, made.name: None}
    assert not (tmp_path / "own").exists()
    assert run(tmp_path) == LOADED

    assert run(tmp_path, NUMBA_CPU_NAME="x86-64-v2") == COMPILED  # who says for what, gets that
    code = made.read_bytes()[cached.SEAL_BYTES :]
    for other in (("0.1", STAMP), (numba.__version__, "other sources")):
        made.write_bytes(cached.sealed(other, code))
        (folder := tmp_path / f"of {other[0]}").mkdir()
        shutil.copy(made, folder)
        assert run(folder) == COMPILED
    made.write_bytes(cached.sealed((numba.__version__, STAMP), code))
    assert run(tmp_path) == LOADED


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "no pickle"])
def test_damaged_code_is_compiled_anew_and_not_run(tmp_path, damage):
    """A disk that was full, or lost power, must not keep a server from its start."""
    run(tmp_path, **cached.VARIABLES)
    (made,) = tmp_path.glob("*.nbc")
    code = made.read_bytes()
    middle = len(code) // 2
    made.write_bytes(
        {
            "empty": b"",
            "cut": code[:-1],
            "flipped": code[:middle] + bytes([code[middle] ^ 1]) + code[middle + 1 :],
            "no pickle": b"not a pickle",
        }[damage]
    )
    assert run(tmp_path) == COMPILED


def test_a_processor_below_the_level_compiles_for_itself(monkeypatch):
    assert cached.is_of_level()
    monkeypatch.setattr(cached, "processor_features", lambda: cached.FEATURES - {"avx2"})
    assert not cached.is_of_level()


def test_every_kernel_is_compiled_ahead():
    sources = [path for name in ("embstore", "server") for path in (ROOT / name).rglob("*.py")]
    named = re.findall(r"^@kernel$", "".join(path.read_text("utf-8") for path in sources), re.M)
    assert len(kernels()) == len(named)


FIRST_CALL = """
import numpy as np
from numba.core.typing.context import BaseContext
from embstore.arithmetic import compiled

def registered(*_):
    raise AssertionError("a call registers conversions, and another beside it would be refused")

compiled._sum_by_key.compile()
BaseContext.install_possible_conversions = registered
sums = np.empty((2, 3), np.float32)
compiled._sum_by_key(np.array([0, 1, 0], np.int32), np.ones((3, 3), np.float32), sums)
assert sums.tolist() == [[2.0] * 3, [1.0] * 3]
"""


def test_the_first_calls_of_a_kernel_may_come_together():
    """What they convert is registered when it is compiled: Numba refuses a call that finds that
    another one beside it has registered it meanwhile."""
    words = [sys.executable, "-c", FIRST_CALL]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
