"""The bare disk, a yardstick for the store's storage; and a function that makes files cold."""

import gc
import os
import pathlib
import time

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 8 << 20
GATHER_ROW_BYTES = 256


def file_system(path: str | pathlib.Path) -> str:
    """Return the type of the file system that holds `path` ("ext4", "tmpfs", ...)."""
    real = os.path.realpath(path)
    found = ("", "unknown")
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(found[0]):
            found = (mount, kind)
    return found[1]


def files_under(path: pathlib.Path) -> list[pathlib.Path]:
    return [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]


def allocated_bytes(path: pathlib.Path) -> int:
    """Return the bytes that the files take on disk: a hole takes none."""
    return sum(p.stat().st_blocks * 512 for p in files_under(path))


def drop_page_cache(path: pathlib.Path) -> None:
    """Make the files cold. Nobody may have them mapped: the kernel keeps mapped pages."""
    gc.collect()
    for file in files_under(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # dirty pages are not dropped either
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def io_bytes(name: str) -> int:
    """Return what this process has moved so far: "read_bytes" from disk, the proof that a file was
    cold; "wchar" by all writes."""
    lines = pathlib.Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)[name])


def read_plain(path: pathlib.Path) -> float:
    """Read a file in order, and return the seconds that took."""
    begin = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(CHUNK_BYTES):
            pass
    return time.perf_counter() - begin


def write_plain(path: pathlib.Path, size_bytes: int) -> float:
    """Write a new file of random bytes in order, fsync it, and return the seconds that took."""
    chunk = np.random.default_rng(0).bytes(CHUNK_BYTES)
    path.unlink(missing_ok=True)
    begin = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for first in range(0, size_bytes, CHUNK_BYTES):
            part = memoryview(chunk)[: size_bytes - first]
            while part:
                part = part[file.write(part) :]
        os.fsync(file.fileno())
    return time.perf_counter() - begin


def gather_plain(path: pathlib.Path, rows: NDArray[np.int64]) -> float:
    """Gather 256-byte rows through a default np.memmap and return the seconds that took."""
    count = path.stat().st_size // GATHER_ROW_BYTES
    mapped = np.memmap(path, dtype=np.uint8, mode="r", shape=(count, GATHER_ROW_BYTES))
    begin = time.perf_counter()
    gathered = mapped[rows]
    seconds = time.perf_counter() - begin
    del mapped, gathered
    return seconds
