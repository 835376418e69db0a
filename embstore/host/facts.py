"""Facts about the host: processor and memory."""

import os
import platform
from pathlib import Path
from typing import Any


def host_facts() -> dict[str, Any]:
    """Return the processor's model, and the host's memory in bytes, all of it and what is free."""
    return {
        "model": _processor(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "memory_free_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
