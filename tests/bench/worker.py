"""The process of a contender, and the calls of the parent process to it.

A worker imports one module of this package and calls the module's ``start(scale)``, which returns
an object. The parent then calls methods of this object in the worker, one at a time. If a module
has no ``start``, the parent calls functions of the module instead, with the scale and a new folder
as arguments. A contender that cannot run raises `SkippedError` with the reason, and the other
contenders continue. If the parent dies, the worker first closes its contender, because Redis is a
process of its own.
"""

import contextlib
import importlib
import multiprocessing
import os
import pathlib
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from tests.bench.scale import Scale, set_threads

OWN = ("embstore", "embstore_client", "embstore_proto", "embstore_server", "tests")
"""Packages that are always there: what cannot be imported of them is broken, not missing."""
WATCH_INTERVAL_S = 0.005


class SkippedError(Exception):
    """Nothing can be measured here; the message says why."""


def _import(module: str) -> Any:
    try:
        return importlib.import_module(f"tests.bench.{module}")
    except (ImportError, OSError) as exc:  # OSError: a library that the wheel loads is not there
        name = getattr(exc, "name", None)
        is_missing = isinstance(exc, ModuleNotFoundError) and name is not None
        if not (module.startswith("peer_") or (is_missing and name.partition(".")[0] not in OWN)):
            raise
        raise SkippedError(f"not installed: {exc}") from exc


class Parts:
    """A module's functions, as they are asked: each has a folder that is removed afterwards."""

    def __init__(self, module: Any, scale: Scale) -> None:
        self._module, self._scale = module, scale
        self._folder = pathlib.Path(scale.data_dir) / module.__name__.rpartition(".")[2]

    def __getattr__(self, part: str) -> Callable[[], Any]:
        def measure() -> Any:
            self._folder.mkdir()
            try:
                return getattr(self._module, part)(self._scale, self._folder)
            finally:
                shutil.rmtree(self._folder)

        return measure

    def close(self) -> None:
        """Hold nothing."""


_contender: Any = None
"""Of a worker's process."""


def _start(name: str, scale: Scale, *more: Any) -> int:
    """Make the contender; return the process's id."""
    global _contender
    set_threads(scale)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    module = _import(name)
    has_start = hasattr(module, "start")
    _contender = module.start(scale, *more) if has_start else Parts(module, scale)
    return os.getpid()


def _end_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    _ask("close")
    os._exit(1)


def _ask(method: str, *arguments: Any) -> Any:
    return None if _contender is None else getattr(_contender, method)(*arguments)


class Worker:
    """The parent's end. What the contender raises is raised here, too."""

    def __init__(self, module: str, scale: Scale, *more: Any) -> None:
        context = multiprocessing.get_context("spawn")  # fork would share the parent's thread pools
        self._process = ProcessPoolExecutor(1, context)
        try:
            self.pid = self._process.submit(_start, module, scale, *more).result()
        except BaseException:
            self.close()
            raise

    def ask(self, method: str, *arguments: Any, watch: Callable[[], None] | None = None) -> Any:
        """Call `method` there and return its result; call `watch` every few ms meanwhile."""
        asked = self._process.submit(_ask, method, *arguments)
        while watch is not None and not wait([asked], WATCH_INTERVAL_S).done:
            watch()
        return asked.result()

    def close(self) -> None:
        """Have the contender close, and its process end."""
        with self._process, contextlib.suppress(BrokenProcessPool):
            self.ask("close")
