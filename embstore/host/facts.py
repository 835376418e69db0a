"""Facts about the host: its processor, and the memory that this process can use.

Control groups, of version 1 or 2, limit the memory of a container. A process is in one group, and
each group above that group has a limit as well. A container can see its own group as the root.
"""

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

THREADS_MAX = 256
"""Maximum number of threads that a user can set: the system may have no memory for the stacks of
more threads."""
HOST_PARTS = 4
"""By default, level two of a GPU's cache takes the host's free memory divided by this number: the
trainer, the page cache and storage's indexes need the rest."""
_ROOT = Path("/")
_GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""For versions 2 and 1 of control groups: the file with the limit, the file with the use, and the
line of memory.stat with the page cache that can be dropped."""


def host_facts() -> dict[str, Any]:
    """Return the processor's model, and memory in bytes.

    `memory_bytes` is the whole memory that the process can use (a container can be limited), and
    `memory_free_bytes` its free part.
    """
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [_least(limit) for limit, _, _ in _GROUP_FILES]
    return {
        "model": _processor(),
        "memory_bytes": min(whole, *limits),
        "memory_free_bytes": free_bytes(),
    }


def free_bytes(root: Path = _ROOT) -> int:
    """Return the bytes of memory that this process can still allocate without swapping.

    This is the system's MemAvailable, or less if a control group has less memory left.
    """
    free = _sizes(root / "proc/meminfo").get("MemAvailable:")
    if free is None:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    for group in _groups(root):
        for limit_file, used_file, dropped in _GROUP_FILES:
            limit, used = _number(group / limit_file), _number(group / used_file)
            if limit is not None and used is not None:
                used -= _sizes(group / "memory.stat").get(dropped, 0)
                free = min(free, max(limit - used, 0))
    return free


def swap_bytes(root: Path = _ROOT) -> int:
    """Return the bytes of swap space that this process can use."""
    return min(_sizes(root / "proc/meminfo").get("SwapTotal:", 0), _least("memory.swap.max", root))


def _groups(root: Path) -> Iterator[Path]:
    """Yield the directories of this process's control groups, and of the groups above them."""
    top = root / "sys/fs/cgroup"
    yield from (top, top / "memory")
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            place = Path(controllers and "memory", path.lstrip("/"))
            yield from (top / one for one in (place, *place.parents))


def _least(name: str, root: Path = _ROOT) -> int:
    """Return the lowest limit in the files of this name, over all control groups."""
    limits = (_number(group / name) for group in _groups(root))
    return min((limit for limit in limits if limit is not None), default=sys.maxsize)


def _number(path: Path) -> int | None:
    """Return the number in a file; None: the file does not exist, or contains "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _sizes(path: Path) -> dict[str, int]:
    """Return the numbers of bytes in the lines of a file, by the first word of each line."""
    words = (line.split() for line in _lines(path))
    return {w[0]: int(w[1]) << (10 if w[2:] == ["kB"] else 0) for w in words if len(w) > 1}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _processor() -> str:
    lines = _lines(_ROOT / "proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    if not names:
        return platform.processor() or platform.machine()
    return names[0]
