"""Compiling kernels that are not stored yet, in several processes, once after an installation.

Compiling all kernels takes about a minute of processor time. Each child process reads names of
kernels from its standard input, compiles one kernel after the other, and answers with machine code.
It ends when this process ends. Code is stored as soon as it arrives, so that a start that was
interrupted continues later. This process imports no Numba.

A process that ends early (for lack of memory, for example) is not replaced. The other processes
continue; if kernels are left at the end, a single process compiles these kernels. If no process can
be started, this process compiles all kernels, and their code is not stored.
"""

import logging
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from traceback import format_exc
from typing import IO, Any

from embstore.arithmetic import cached
from embstore.arithmetic.jit import Kernel, Progress, codegen
from embstore.errors import EmbstoreError

PROCESSES_MAX = 8  # the largest kernel takes a fifth of the time
_SPOKEN_EVERY_S = 5.0
_PROGRAM = "from embstore.arithmetic.compiling import work; work()"
_HEADER_BYTES = 8

Compiled = tuple[Kernel, bytes]


class Spoken:
    """Reports the progress of compiling in the log "embstore" every few seconds. The report is a
    warning, because Python shows warnings even if no log is configured."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._next_at = self._began

    def __call__(self, done: int, of: int) -> None:
        """Report progress, unless the last report was a moment ago."""
        now = monotonic()
        if now >= self._next_at or done == of:
            self._next_at = now + _SPOKEN_EVERY_S
            logging.getLogger("embstore").warning(
                "compiling kernels: %d of %d after %.0f s, once after an installation",
                done,
                of,
                now - self._began,
            )


def compile_missing(missing: list[Kernel], of: int, progress: Progress) -> None:
    """Compile kernels, load them, and store their code.

    of : number of all kernels, including kernels whose code was stored
    """
    done = [of - len(missing)]
    progress(done[0], of)
    for kernel, code in compiled(missing, waiting=lambda: progress(done[0], of)):
        kernel.take(code)
        done[0] += 1
        progress(done[0], of)


def compiled(
    missing: list[Kernel],
    count: int | None = None,
    waiting: Callable[[], None] = lambda: None,
) -> Iterator[Compiled]:
    """Compile kernels in `count` processes, by default as many as can run at once. Store the code
    of each kernel, and yield the kernel with its code. `waiting` is called every few seconds as
    long as no kernel is done.

    Raises EmbstoreError if a kernel could not be compiled.
    """
    left = {kernel.name: kernel for kernel in _by_size(missing)}
    count = usable_processors() if count is None else count
    for processes in (min(count, PROCESSES_MAX, len(left)), 1) if count and sys.executable else ():
        failures: list[str] = []
        for kernel, code in _by_processes(list(left.values()), processes, failures, waiting):
            del left[kernel.name]
            cached.keep(kernel, code)
            yield kernel, code
        if not left:
            return
        if not failures:
            break
    else:
        if count and sys.executable:
            raise EmbstoreError(f"kernels could not be compiled: {failures[0]}")
    for kernel in left.values():
        yield kernel, object_code(kernel)


def object_code(kernel: Kernel) -> bytes:
    """Compile a kernel in this process."""
    code: bytes = codegen().object_code(kernel.function, kernel.parameters)
    return code


def usable_processors() -> int:
    """Return how many processors this process can use at once."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        allowed = max(1, round(int(quota) / int(period)))
    except (OSError, ValueError):  # there is no limit
        allowed = sys.maxsize
    return min(len(os.sched_getaffinity(0)), allowed)


def _by_size(kernels: list[Kernel]) -> list[Kernel]:
    """Return kernels in descending order of size, so that no large kernel is compiled last."""
    return sorted(kernels, key=lambda kernel: -len(kernel.function.__code__.co_code))


def _by_processes(
    kernels: list[Kernel], count: int, failures: list[str], waiting: Callable[[], None]
) -> Iterator[Compiled]:
    """Yield kernels that processes compiled, each with its code. Add the reasons of failures to
    `failures`. If no process can be started, yield nothing and add nothing."""
    names, answers = deque(kernels), SimpleQueue[Compiled | str | None]()
    processes: list[subprocess.Popen[bytes]] = []
    with suppress(OSError):
        processes.extend(_started() for _ in range(count))
    try:
        for process in processes:
            Thread(target=_converse, args=(process, names, answers), daemon=True).start()
        ended = 0
        while ended < len(processes):
            try:
                answer = answers.get(timeout=_SPOKEN_EVERY_S)
            except Empty:
                waiting()
                continue
            if answer is None:
                ended += 1
            elif isinstance(answer, str):
                failures.append(answer)
            else:
                yield answer
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _started() -> "subprocess.Popen[bytes]":
    path = os.pathsep.join(os.path.abspath(place) for place in sys.path)
    portable = cached.VARIABLES if cached.is_portable() else {}
    environment = os.environ | portable | {"PYTHONPATH": path, "NUMBA_DISABLE_JIT": "0"}
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )


def _converse(
    process: "subprocess.Popen[bytes]",
    waiting: "deque[Kernel]",
    answers: "SimpleQueue[Compiled | str | None]",
) -> None:
    """Send names of kernels to a process, and put its answers into `answers`, followed by None."""
    assert process.stdin is not None
    assert process.stdout is not None
    kernel = None
    try:
        while waiting:
            with suppress(IndexError):
                kernel = waiting.popleft()
                function = kernel.function
                process.stdin.write(f"{function.__module__} {function.__qualname__}\n".encode())
                process.stdin.flush()
                code, error = _read(process.stdout)
                answers.put((kernel, code) if code else error)
    except (OSError, EOFError):
        status = process.wait()
        answers.put(f"a process that compiled {kernel and kernel.name} ended with status {status}")
    finally:
        with suppress(OSError), process.stdin, process.stdout:
            pass
        answers.put(None)


def _read(stream: IO[bytes]) -> tuple[bytes, str]:
    size = int.from_bytes(_exactly(stream, _HEADER_BYTES), "little")
    code, error = pickle.loads(_exactly(stream, size))
    return code, error


def _exactly(stream: IO[bytes], count: int) -> bytes:
    found = stream.read(count)
    if len(found) < count:
        raise EOFError
    return found


def work() -> None:
    """Compile the kernels that standard input names, and write their code to standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the parent decides
    out, sys.stdout = sys.stdout.buffer, sys.stderr
    for line in sys.stdin:
        module, name = line.split()
        answer: tuple[bytes, str]
        try:
            kernel: Any = getattr(import_module(module), name)
            answer = object_code(kernel), ""
        except Exception:
            answer = b"", format_exc()
        text = pickle.dumps(answer)
        out.write(len(text).to_bytes(_HEADER_BYTES, "little") + text)
        out.flush()
