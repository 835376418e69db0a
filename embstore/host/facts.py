"""Facts about the host: processor and memory."""

import os
import platform
import sys
from pathlib import Path
from typing import Any

THREADS_MAX = 256
"""More are a mistake: the system may have no room for their stacks."""


def host_facts() -> dict[str, Any]:
    """Return the processor's model, and memory in bytes: all that the process may have (a container
    may be limited), and what of the host's is free."""
    return {
        "model": _processor(),
        "memory_bytes": min(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), _limit("memory.max")
        ),
        "memory_free_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"),
    }


def _limit(name: str) -> int:
    """Return a limit of the control group, as a container sees it."""
    try:
        return int(Path("/sys/fs/cgroup", name).read_text())
    except (OSError, ValueError):  # there is none, or it is "max"
        return sys.maxsize


def swap_bytes() -> int:
    """Return the bytes that the memory of this process can be swapped to."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    host = sum(1024 * int(line.split()[1]) for line in lines if line.startswith("SwapTotal:"))
    return min(host, _limit("memory.swap.max"))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
