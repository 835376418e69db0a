"""Compiled kernels are kept, and taken if sources and processor are the same."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embstore.arithmetic import cached, compiling
from embstore.arithmetic.compiled import _sum_by_key
from embstore.errors import EmbstoreError
from embstore_tools.commands.compile import kernels
from tests.strange_files import listing, strew
from tests.style.sources import ROOT

pytestmark = pytest.mark.skipif(
    not cached.is_portable(), reason=f"this processor is not of level {cached.CPU}"
)

KERNEL = "embstore.storage.cold.count_absent"
PROGRAM = f"""
import sys
from pathlib import Path
from embstore.arithmetic import cached, jit
from embstore.storage.cold import count_absent

cached.PORTABLE = Path(sys.argv[1])
jit.kernels[:] = [count_absent]
assert count_absent.name == "{KERNEL}"
progress = []
jit.compile_kernels(lambda done, of: progress.append((done, of)))
assert count_absent.is_loaded()
assert "numba" not in sys.modules, "what compiles is another process"
print(sorted(set(progress)))
"""
LOADED, COMPILED = "[]", "[(0, 1), (1, 1)]"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))


def run(folder: Path, **variables: str) -> str:
    """Run the program, with portable code in a folder, and nothing else compiled."""
    variables.setdefault("XDG_CACHE_HOME", str(folder / "own"))
    variables["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder / "portable")],
        cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_another_process_takes_what_was_compiled_unless_it_is_damaged(tmp_path, tmp_path_factory):
    """A disk that was full, or lost power, must not keep a server from its start."""
    folder = tmp_path / "portable"
    folder.mkdir()
    strew(folder, tmp_path_factory.mktemp("outside"))
    before = listing(folder)
    assert run(tmp_path) == COMPILED
    (name,) = listing(folder).keys() - before.keys()
    made = folder / name
    assert {**listing(folder), name: None} == {**before, name: None}
    assert run(tmp_path) == LOADED
    other_copy = tmp_path / "clone"
    other_copy.mkdir()
    assert run(other_copy, XDG_CACHE_HOME=str(tmp_path / "own")) == LOADED

    kernel, code = kernels()[KERNEL], made.read_bytes()
    middle = len(code) // 2
    flipped = code[:middle] + bytes([code[middle] ^ 1]) + code[middle + 1 :]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cached, "PORTABLE", made.parent)
        assert cached.kept(kernel) == code[cached.SEAL_BYTES :]
        patch.setattr(cached, "stamp", lambda folder: "other sources")
        assert cached.kept(kernel) is None
        patch.undo()
        patch.setattr(cached, "PORTABLE", made.parent)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
        for damaged in (b"", code[:-1], flipped, b"no code"):
            made.write_bytes(damaged)
            assert cached.kept(kernel) is None


def test_code_of_one_processor_and_of_a_package_that_is_read_only_is_the_users(
    tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("no folder")
    kernel, own = kernels()[KERNEL], tmp_path / "own" / "embstore" / "kernels"
    monkeypatch.setattr(cached, "PORTABLE", tmp_path / "file" / "portable")
    assert cached.keep(kernel, b"code") == [own]
    assert cached.kept(kernel) == b"code"
    monkeypatch.setattr(cached, "PORTABLE", tmp_path / "portable")
    assert cached.keep(kernel, b"code") == [tmp_path / "portable", own]
    monkeypatch.setenv("NUMBA_CPU_NAME", "x86-64-v2")
    assert cached.kept(kernel) is None  # who says for what, gets that
    assert cached.keep(kernel, b"code of v2") == [own]
    assert cached.kept(kernel) == b"code of v2"


def test_versions_of_the_package_share_a_users_folder(tmp_path, monkeypatch):
    """One took the other's files away, and each start compiled all kernels anew."""
    kernel, own = kernels()[KERNEL], tmp_path / "own" / "embstore" / "kernels"
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setattr(cached, "PORTABLE", tmp_path / "file" / "portable")
    versions = [f"{n:032x}" for n in (1 << 124, 2 << 124, 3 << 124, 4 << 124, 5 << 124)]
    for n, version in enumerate(versions):
        monkeypatch.setattr(cached, "stamp", lambda folder, version=version: version)
        cached.keep(kernel, version.encode())
        (made,) = own.glob(f"*-{version[:12]}.nbc")
        os.utime(made, (n, n))
    found = []
    for version in versions:
        monkeypatch.setattr(cached, "stamp", lambda folder, version=version: version)
        found.append(cached.kept(kernel))
    assert found == [None, *(version.encode() for version in versions[1:])]


def test_a_disk_that_takes_nothing_costs_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(cached, "PORTABLE", tmp_path / "file" / "portable")
    assert cached.keep(kernels()[KERNEL], b"code") == []
    assert "could not be kept" in caplog.text


def test_a_processor_below_the_level_compiles_for_itself(monkeypatch):
    assert cached.is_portable()
    monkeypatch.setattr(cached, "processor_features", lambda: cached.FEATURES - {"avx2"})
    assert not cached.is_portable()


@pytest.mark.parametrize("program", ["import os; os._exit(9)", "raise SystemExit"])
def test_processes_that_end_are_an_error_that_says_so(program, monkeypatch):
    monkeypatch.setattr(compiling, "_PROGRAM", program)
    with pytest.raises(EmbstoreError, match=f"compiled .*{KERNEL} ended with status"):
        list(compiling.compiled([kernels()[KERNEL]]))


def test_a_kernel_that_takes_long_is_said_to_be_compiled_still(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "go")
    monkeypatch.setattr(compiling, "_SPOKEN_EVERY_S", 0.01)
    program = f"open({str(tmp_path / 'go')!r}).close(); {compiling._PROGRAM}"
    monkeypatch.setattr(compiling, "_PROGRAM", program)
    monkeypatch.setattr(cached, "PORTABLE", tmp_path / "portable")
    said = 0

    def waiting() -> None:
        nonlocal said
        said += 1
        if said == 3:
            (tmp_path / "go").write_text("")

    assert len(list(compiling.compiled([kernels()[KERNEL]], waiting=waiting))) == 1
    assert said >= 3


def test_a_kernel_that_one_process_fails_at_is_compiled_by_another(tmp_path, monkeypatch):
    mark = tmp_path / "mark"
    once = f"import os; os.path.exists({str(mark)!r}) or (open({str(mark)!r}, 'w'), os._exit(9));"
    monkeypatch.setattr(compiling, "_PROGRAM", f"{once} {compiling._PROGRAM}")
    monkeypatch.setattr(cached, "PORTABLE", tmp_path / "portable")
    kernel = kernels()[KERNEL]
    ((found, code),) = compiling.compiled([kernel])
    assert (found, cached.kept(kernel)) == (kernel, code)


def test_without_processes_this_one_compiles(monkeypatch):
    monkeypatch.setattr(compiling, "object_code", lambda kernel: b"made here")
    monkeypatch.setattr(sys, "executable", "")
    kernel = kernels()[KERNEL]
    assert list(compiling.compiled([kernel])) == [(kernel, b"made here")]


def test_every_kernel_is_found():
    sources = [path for name in ("embstore", "server") for path in (ROOT / name).rglob("*.py")]
    named = re.findall(r"^@kernel$", "".join(path.read_text("utf-8") for path in sources), re.M)
    assert len(kernels()) == len(named)


SUMS = np.empty((2, 3), np.float32)
INVERSE, VALUES = np.array([0, 1, 0], np.int32), np.ones((3, 3), np.float32)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((INVERSE, VALUES), "takes 3 arguments"),
        ((INVERSE, VALUES, [1]), "argument 3 of _sum_by_key"),
        ((INVERSE.astype(np.int64), VALUES, SUMS), "argument 1 of .* C-contiguous int32 of 1"),
        ((INVERSE.view(np.uint32), VALUES, SUMS), "argument 1"),
        ((INVERSE.astype(">i4"), VALUES, SUMS), "argument 1"),
        ((INVERSE, VALUES[0], SUMS), "argument 2"),
        ((INVERSE, VALUES.T[:2], SUMS), "argument 2"),
        ((INVERSE, np.zeros(37, np.uint8)[1:].view(np.float32).reshape(3, 3), SUMS), "argument 2"),
    ],
)
def test_a_kernel_refuses_arrays_of_another_type(arguments, found):
    with pytest.raises(TypeError, match=found):
        _sum_by_key(*arguments)  # type: ignore[arg-type]


def test_a_kernel_takes_what_it_reads_read_only_and_writes_to_no_such_array():
    values, sums = VALUES.copy(), SUMS.copy()
    values.flags.writeable = False
    _sum_by_key(INVERSE, values.view(np.recarray), sums)
    assert sums.tolist() == [[2.0] * 3, [1.0] * 3]
    sums.flags.writeable = False
    with pytest.raises(TypeError, match=r"argument 3 .* writable"):
        _sum_by_key(INVERSE, values, sums)


def test_a_kernel_refuses_numbers_of_another_kind():
    count_absent = kernels()[KERNEL]
    addresses = np.zeros(1, np.uint64)
    assert count_absent(addresses, np.int32(1)) == 0
    for wrong, error in ((1.5, TypeError), (None, TypeError), (1 << 64, OverflowError)):
        with pytest.raises(error):
            count_absent(addresses, wrong)


def test_a_kernel_has_the_same_bytes_whatever_was_compiled_before():
    """Numba counts what it compiles, and names parts by that; a release is built twice."""
    (kernel,) = (each for each in kernels().values() if each.name == KERNEL)
    assert compiling.object_code(kernel) == compiling.object_code(kernel)


FOUND = """
import sys
from embstore.arithmetic import jit
from embstore_tools.commands.compile import kernels

found = len(kernels())
assert not {"fastapi", "prometheus_client", "uvicorn"} & sys.modules.keys()
import embstore_server.host.app
assert found == len(jit.kernels)
"""


def test_kernels_are_found_without_the_libraries_of_a_server():
    """`embstore compile` needs the extra `fast` alone, with which a release is built."""
    subprocess.run([sys.executable, "-c", FOUND], check=True)
