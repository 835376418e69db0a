"""Copies by two threads: whole, whatever becomes of the second one."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from embstore_client import copying

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("shape", [(0,), (1,), (7, 3), (1, 5), (2_000_001,), (3, 400_001), ()])
def test_a_copy_has_every_element(shape):
    source = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    target = np.full(shape, -1)
    copying.copy(source, target)
    assert (target == source).all()


def test_a_large_copy_is_made_by_two_threads(monkeypatch):
    threads = set()
    copyto = np.copyto

    def noted(target: object, source: object) -> None:
        threads.add(threading.get_ident())
        copyto(target, source)  # type: ignore[arg-type]

    monkeypatch.setattr(copying.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(copying.np, "copyto", noted)
    source = np.ones(copying.SHARED_BYTES // 8)
    target = np.zeros(len(source))
    copying.copy(source[:-1], target[:-1])
    assert len(threads) == 1
    copying.copy(source, target)
    assert len(threads) == 2
    assert target.all()


def test_without_a_second_thread_one_copies_all(monkeypatch):
    def none(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    source, target = np.ones(2 * copying.SHARED_BYTES), np.zeros(2 * copying.SHARED_BYTES)
    copying.copy(source, target)
    assert target.all()


PROGRAM = """
import atexit, threading
import numpy as np
from embstore_client import copying

def copies(where):
    source, target = np.ones(copying.SHARED_BYTES), np.zeros(copying.SHARED_BYTES)
    copying.copy(source, target)
    print(where, bool(target.all()), flush=True)

def outlives():
    threading.main_thread().join()
    copies("after the main thread")

atexit.register(copies, "at exit")
threading.Thread(target=outlives).start()
"""


def test_copies_are_made_until_the_very_end():
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert sorted(ran.stdout.splitlines()) == ["after the main thread True", "at exit True"]
