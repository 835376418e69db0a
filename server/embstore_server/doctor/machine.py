"""Findings for clock, processor, memory, huge pages and shared memory."""

import ctypes
import os
from collections.abc import Iterator

from embstore.arithmetic.denormals import keeping, keeps_denormals
from embstore.errors import DeviceError
from embstore.host.facts import HOST_PARTS, free_bytes, swap_bytes
from embstore_server.doctor.findings import Finding, System, fail, ok, warn
from embstore_server.setup.parsing import bytes_text

MEMORY_SMALL_BYTES = LEVEL_TWO_SMALL_BYTES = 1 << 30
SHARED_SMALL_BYTES = 64 << 20
"""The default size of /dev/shm in a container of Docker."""
FAST_CLOCKS = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"}
"""The clock sources that a process reads without a system call."""
CORES_FEW = 2
_ROW_BYTES = (64, 528)
"""Bytes of a row of 16 elements, and of a row of 128 elements with row-wise state."""
_KEY_BYTES = 40
"""The most bytes of GPU memory that a row in level two takes, for its key, score, flag and part of
the index. Level two is the part of a GPU's cache that is in the host's memory."""

_TIME_ERROR, _TIMEX_BYTES = 5, 512
_NOT_SYNCHRONIZED = 0x40
_NO_OVERCOMMIT = 2


def looked_at(system: System, *, has_gpu: bool) -> Iterator[Finding]:
    """Yield the findings for the machine."""
    yield of_clock_source(system)
    yield of_clock(synchronized=clock_is_synchronized())
    yield of_cores(len(os.sched_getaffinity(0)), system)
    yield of_processor(system)
    yield of_denormals()
    yield of_memory(system)
    yield of_level_two(system, has_gpu=has_gpu)
    yield of_overcommit(system)
    yield of_huge_pages(system)
    yield of_shared_memory(system)


def of_clock_source(system: System) -> Finding:
    """Judge how fast the clock is read; every call reads it several times."""
    name = system.text("sys/devices/system/clocksource/clocksource0/current_clocksource")
    if not name or name in FAST_CLOCKS:
        return ok("clock source", name or "not said")
    change = "boot with clocksource=tsc, if the processor's counter is stable"
    return warn("clock source", f"{name}, which is slow to read", change)


def clock_is_synchronized() -> bool | None:
    """Return whether the kernel's clock is synchronized with another clock; None: this is
    unknown."""
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    if adjtimex is None:
        return None
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)  # zeros, which change nothing
    state = adjtimex(buffer)
    if state < 0:
        return None
    longs = ctypes.cast(buffer, ctypes.POINTER(ctypes.c_long))
    status = ctypes.c_int(longs[_STATUS_LONG] & 0xFFFFFFFF).value
    return state != _TIME_ERROR and not status & _NOT_SYNCHRONIZED


_STATUS_LONG = 5
"""Index of the status in struct timex: modes (with its padding), offset, freq, maxerror, esterror,
status."""


def of_clock(*, synchronized: bool | None) -> Finding:
    """Judge the wall clock: rows do not depend on it, but times in logs and labels do."""
    if synchronized is None:
        return ok("clock", "not said")
    if synchronized:
        return ok("clock", "synchronized")
    change = "run chrony or systemd-timesyncd: logs and traces of several machines are compared"
    return warn("clock", "not synchronized", change)


def of_cores(usable: int, system: System) -> Finding:
    """Judge the number of processors: engine, event loop and kernels run concurrently."""
    found, cores = f"{usable} processors", float(usable)
    quota, _, period = system.text("sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdecimal() and period.isdecimal():
        cores = min(cores, int(quota) / int(period))
        found += f", limited to the time of {cores:g} by the control group"
    if cores >= CORES_FEW:
        return ok("processors", found)
    change = f"allow {CORES_FEW} or more: calls wait for each other, and for the event loop"
    return warn("processors", found, change)


def of_processor(system: System) -> Finding:
    """Judge the processor's vector instructions."""
    features: dict[str, str] = {}
    for line in system.text("proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        features.setdefault(name.strip(), value.strip())
    model = features.get("model name", "not said")
    if "flags" not in features or "avx2" in features["flags"].split():
        return ok("processor", model)
    change = "take a processor with AVX2, or have the virtual machine show it: kernels are slower"
    return warn("processor", f"{model}, without AVX2", change)


def of_denormals() -> Finding:
    """Judge whether this thread keeps denormal numbers, and does not flush them to zero
    (docs/contract.md, rule 1)."""
    if keeps_denormals():
        return ok("denormals", "kept")
    change = "find what sets flush-to-zero (LD_PRELOAD, a library compiled with -ffast-math)"
    try:
        kept = keeping(keeps_denormals)
    except DeviceError:
        kept = False
    if kept:
        return warn("denormals", "flushed by this process; embstore keeps them in its own", change)
    return fail("denormals", "flushed, and nothing changes that: updates are refused", change)


def of_memory(system: System) -> Finding:
    """Judge the memory that is free for a cache."""
    free = free_bytes(system.root)
    found = f"{bytes_text(free)} to be had, {bytes_text(swap_bytes(system.root))} of swap"
    if free < MEMORY_SMALL_BYTES:
        change = "give --cache-bytes less than its 1 GiB, or the machine (or control group) more"
        return warn("memory", found, change)
    return ok("memory", found)


def of_level_two(system: System, *, has_gpu: bool) -> Finding:
    """Judge the host's memory for level two of a GPU's cache, in the default configuration."""
    if not has_gpu:
        return ok("level two", "none: without a GPU the whole cache is in memory of the host")
    size = free_bytes(system.root) // HOST_PARTS
    rows = (
        f"{size // row_bytes:,} rows of {row_bytes} bytes, whose keys take up to "
        f"{bytes_text(size // row_bytes * _KEY_BYTES)} of the GPU's cache"
        for row_bytes in _ROW_BYTES
    )
    found = f"{bytes_text(size)} by default, a quarter of that: {', or '.join(rows)}"
    if size < LEVEL_TWO_SMALL_BYTES:
        change = "give the machine (or control group) more: rows that leave the GPU go to the disk"
        return warn("level two", found, change)
    return ok("level two", f"{found}; of several servers give each its --host-cache-bytes")


def of_overcommit(system: System) -> Finding:
    """Judge whether a process can reserve addresses without memory."""
    if system.number("proc/sys/vm/overcommit_memory") != _NO_OVERCOMMIT:
        return ok("overcommit", "allowed")
    change = "`sysctl vm.overcommit_memory=0`, or a smaller --cache-bytes"
    return warn(
        "overcommit", "not allowed: the whole budget of a cache counts as used memory", change
    )


def of_huge_pages(system: System) -> Finding:
    """Judge whether a cache gets huge pages; without them, random reads walk page tables."""
    text = system.text("sys/kernel/mm/transparent_hugepage/enabled")
    if not text:
        return ok("huge pages", "not said")
    chosen = text.partition("[")[2].partition("]")[0]
    if chosen in ("always", "madvise"):
        return ok("huge pages", chosen)
    change = "`echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`"
    return warn("huge pages", f"{chosen}: lookups from a large cache take longer", change)


def of_shared_memory(system: System) -> Finding:
    """Judge files in memory and /dev/shm.

    Trainers on this host share files in memory with the server; loaders of data use /dev/shm.
    """
    try:
        os.close(os.memfd_create("embstore-doctor"))
    except OSError as exc:
        change = "allow memfd_create; else trainers of this host call by gRPC, which is slower"
        return warn("shared memory", f"no files in memory: {exc.strerror}", change)
    place = system.root / "dev/shm"
    if not place.is_dir():
        return ok("shared memory", "files in memory; no /dev/shm, which the store does not use")
    found = os.statvfs(place)
    return of_shared_bytes(found.f_blocks * found.f_frsize)


def of_shared_bytes(size: int) -> Finding:
    """Judge the size of /dev/shm."""
    if size <= SHARED_SMALL_BYTES:
        change = "give a container that trains --shm-size=2g; embstore itself needs none of it"
        return warn("shared memory", f"/dev/shm has {bytes_text(size)}: loaders need more", change)
    return ok("shared memory", f"files in memory; /dev/shm has {bytes_text(size)}")
