"""A contender's process, and how the parent asks it.

A worker imports one module of this package and calls its ``start(scale)``, which returns an
object; the parent then calls that object's methods over a pipe, one at a time. Where a module has
no ``start``, they are its functions, each given the scale and a fresh folder. While it is not
asked, it sleeps in ``recv``. A contender that cannot run raises `SkippedError` with the reason, and
the others go on.
"""

import contextlib
import importlib
import multiprocessing
import pathlib
import shutil
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tests.bench.scale import Scale, set_threads

OWN = ("embstore", "embstore_client", "embstore_proto", "embstore_server", "tests")
"""Packages that are always there: what cannot be imported of them is broken, not missing."""
CLOSE_TIMEOUT_S = 60.0
WATCH_INTERVAL_S = 0.005


class SkippedError(Exception):
    """Nothing can be measured here; the message says why."""


class FailedError(Exception):
    """A contender broke; the message is its traceback."""


def _answer(call: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    try:
        return "done", call(*arguments)
    except SkippedError as exc:
        return "skipped", str(exc)
    except Exception:  # the parent raises it again, as FailedError
        return "failed", traceback.format_exc()


def _import(module: str) -> Any:
    try:
        return importlib.import_module(f"tests.bench.{module}")
    except (
        ImportError,
        OSError,
    ) as exc:  # OSError: the wheel is there, a library that it loads is not
        if not (module.startswith("peer_") or _is_missing_package(exc)):
            raise
        raise SkippedError(f"not installed: {exc}") from exc


def _is_missing_package(error: Exception) -> bool:
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return False
    return error.name.partition(".")[0] not in OWN


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


def _serve(connection: Connection, name: str, scale: Scale, *more: Any) -> None:
    set_threads(scale)
    contenders: list[Any] = []

    def start() -> None:
        module = _import(name)
        has_start = hasattr(module, "start")
        contenders.append(module.start(scale, *more) if has_start else Parts(module, scale))

    try:
        connection.send(_answer(start))
        # EOF: the parent died. Either way the contender cleans up: Redis is a process of its own.
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            while contenders and (message := connection.recv()) is not None:
                method, arguments = message
                connection.send(_answer(getattr(contenders[0], method), *arguments))
    finally:
        for contender in contenders:
            contender.close()


class Child:
    """A process that runs a function of the other end of a pipe, and of more; its end is near when
    it receives None, or that the parent has died."""

    def __init__(self, run: Callable[..., None], *more: Any, name: str) -> None:
        context = multiprocessing.get_context("spawn")  # fork would share the parent's thread pools
        self.connection, other = context.Pipe()
        self.process = context.Process(target=run, args=(other, *more), name=name)
        self.process.start()
        other.close()  # or the death of the child would not end recv()

    def close(self) -> None:
        """End the process: kindly, then not."""
        with contextlib.suppress(OSError):
            self.connection.send(None)
        self.process.join(CLOSE_TIMEOUT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


class Worker(Child):
    """The parent's end. Raises `SkippedError` or `FailedError` where the contender did."""

    def __init__(self, module: str, scale: Scale, *more: Any) -> None:
        super().__init__(_serve, module, scale, *more, name=module)
        try:
            self._reply()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its process id, for who reads /proc."""
        assert self.process.pid is not None
        return self.process.pid

    def ask(self, method: str, *arguments: Any, watch: Callable[[], None] | None = None) -> Any:
        """Call `method` there and return its result; call `watch` every few ms meanwhile."""
        self.connection.send((method, arguments))
        if watch is not None:
            while not self.connection.poll(WATCH_INTERVAL_S):
                watch()
        return self._reply()

    def _reply(self) -> Any:
        try:
            outcome, result = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join(CLOSE_TIMEOUT_S)
            raise FailedError(f"the process ended with code {self.process.exitcode}") from None
        if outcome == "skipped":
            raise SkippedError(result)
        if outcome == "failed":
            raise FailedError(result)
        return result
