"""The data directory: its file system, its free space, and its speed.

The speed is measured with a file of MEASURED_BYTES in the directory itself. The file is written and
synced as a whole. Then small writes are synced one by one, as a command log syncs its records.
Then the kernel is asked to forget the pages of the file. Finally blocks of 4 KiB are read at random
offsets, as a store reads rows that its cache lacks. The measurement takes about a second.
"""

import os
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from embstore_server.doctor.findings import Finding, System, fail, ok, warn
from embstore_server.setup.parsing import bytes_text

MEASURED_BYTES = 32 << 20
SYNCS, READS, PAGE_BYTES = 20, 200, 4096

ROOM_NONE_BYTES = 64 << 20
"""Free space below which a server soon refuses writes (embstore_server.path.disk_space)."""
ROOM_SMALL_BYTES = 8 << 30
"""Free space below which a store may soon need more: a command log has up to 4 GiB, and merges need
space for the files that they rewrite."""
FILES_FEW = 10_000
SLOW_SYNC_S, SLOW_READ_S, SLOW_WRITE_BYTES_PER_S = 0.01, 0.002, 100 << 20
"""Bounds for a sync, a read and writing. A disk counts as slow if a sync or a read takes longer
than its bound, or if the disk writes fewer bytes a second than the last bound. The bounds are
chosen for a rotating disk; a disk without moving parts is at least five times as fast."""

_OF_A_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre"}
_OF_MEMORY = {"tmpfs", "ramfs"}


@dataclass(frozen=True)
class Speed:
    """The speed of a directory's disk; times are medians, in seconds."""

    write_bytes_per_s: float
    sync_s: float
    read_s: float


def looked_at(system: System, directory: Path) -> Iterator[Finding]:
    """Yield the findings for a data directory; if it does not exist, for its nearest parent that
    exists."""
    place = directory
    try:
        while not place.exists():
            place = place.parent
    except OSError as exc:
        found = f"cannot look at {directory}: {exc.strerror}"
        yield fail("directory", found, "give another directory")
        return
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        change = f"make it a directory that user {os.getuid()} may write to, or serve --read-only"
        yield fail("directory", f"{place} takes no files", change)
        return
    yield of_file_system(file_system(system, place), directory)
    room = os.statvfs(place)
    yield of_room(room.f_bavail * room.f_frsize, room.f_favail if room.f_files else None)
    try:
        yield from of_speed(measured(place))
    except OSError as exc:
        yield fail("disk", f"{place}: {exc.strerror}", "see to the disk, or take another directory")


def file_system(system: System, place: Path) -> str:
    """Return the kind of file system that contains a directory; empty if the kind is unknown."""
    path, kind, longest = str(place.resolve()), "", -1
    for line in system.text("proc/mounts").splitlines():
        _, point, found, *_ = [*line.split(), "", "", ""]
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= longest:
            kind, longest = found, len(point)
    return kind


def of_file_system(kind: str, directory: Path) -> Finding:
    """Judge the kind of file system."""
    found = f"{directory} on {kind or 'an unknown file system'}"
    if kind in _OF_A_NETWORK or kind.startswith("fuse"):
        change = (
            "take a disk of this machine: syncs, locks and maps over a network are slow at best"
        )
        return warn("file system", found, change)
    if kind in _OF_MEMORY:
        return warn("file system", f"{found}: gone with a restart", "take a disk")
    if kind == "overlay":
        change = "give the container a volume (-v embstore:/data): its own layer ends with it"
        return warn("file system", found, change)
    return ok("file system", found)


def of_room(free_bytes: int, free_files: int | None) -> Finding:
    """Judge the free space. `free_files` is the number of files that can still be made; None: the
    number is unknown."""
    found = f"{bytes_text(free_bytes)} free"
    if free_bytes < ROOM_NONE_BYTES:
        return fail("room", found, "free some space: without it writes are refused")
    if free_bytes < ROOM_SMALL_BYTES:
        change = "free more space, or use a larger disk: the log and merges need space, too"
        return warn("room", found, change)
    if free_files is not None and free_files < FILES_FEW:
        return warn(
            "room", f"{found}, but for {free_files:,} files only", "free some of its inodes"
        )
    return ok("room", found)


def of_speed(speed: Speed) -> Iterator[Finding]:
    """Judge the measured speed."""
    yield _judged(
        "disk syncs",
        f"{1000 * speed.sync_s:.2f} ms a sync",
        speed.sync_s > SLOW_SYNC_S,
        "take a faster disk for --durability commands, or leave it at interval",
    )
    yield _judged(
        "disk reads",
        f"{1000 * speed.read_s:.2f} ms a read of 4 KiB",
        speed.read_s > SLOW_READ_S,
        "take a disk without moving parts, more cache (--cache-bytes), or look-ahead",
    )
    yield _judged(
        "disk writes",
        f"{bytes_text(int(speed.write_bytes_per_s))}/s written",
        speed.write_bytes_per_s < SLOW_WRITE_BYTES_PER_S,
        "take a faster disk: checkpoints and merges wait for it",
    )


def _judged(name: str, found: str, is_slow: bool, change: str) -> Finding:
    return warn(name, found, change) if is_slow else ok(name, found)


def measured(place: Path) -> Speed:
    """Measure the speed of a directory's disk; raises OSError."""
    piece = os.urandom(1 << 20)
    with tempfile.NamedTemporaryFile(dir=place, prefix=".doctor-") as file:
        descriptor = file.fileno()
        began = perf_counter()
        for low in range(0, MEASURED_BYTES, len(piece)):
            os.pwrite(descriptor, piece, low)
        os.fdatasync(descriptor)
        write_s = perf_counter() - began
        syncs = [_sync_s(descriptor, piece) for _ in range(SYNCS)]
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        pages = random.sample(range(MEASURED_BYTES // PAGE_BYTES), READS)
        reads = [_read_s(descriptor, page * PAGE_BYTES) for page in pages]
    return Speed(MEASURED_BYTES / write_s, median(syncs), median(reads))


def _sync_s(descriptor: int, piece: bytes) -> float:
    began = perf_counter()
    os.pwrite(descriptor, piece[:PAGE_BYTES], os.fstat(descriptor).st_size)
    os.fdatasync(descriptor)
    return perf_counter() - began


def _read_s(descriptor: int, place: int) -> float:
    began = perf_counter()
    os.pread(descriptor, PAGE_BYTES, place)
    return perf_counter() - began
