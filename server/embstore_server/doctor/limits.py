"""Limits of the process: each connection needs a descriptor, and each file of the store needs a
memory map."""

import resource
from collections.abc import Iterator

from embstore_server.doctor.findings import Finding, System, fail, ok, warn
from embstore_server.setup.parsing import bytes_text

DESCRIPTORS_FEW, DESCRIPTORS_ENOUGH = 256, 4096
"""The number of descriptors that a store and its ports need without connections, and the number
that two ports full of connections need."""
LOCKED_BYTES_ENOUGH = 64 << 20
MAPS_ENOUGH = 65_530
"""The kernel's default for the number of maps of a process."""


def looked_at(system: System, *, has_gpu: bool) -> Iterator[Finding]:
    """Yield the findings for limits."""
    # a server raises its limit to the hard limit
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield of_descriptors(descriptors)
    yield of_locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], has_gpu=has_gpu)
    yield of_address_space(resource.getrlimit(resource.RLIMIT_AS)[0])
    yield of_maps(system)


def of_descriptors(count: int) -> Finding:
    """Judge how many descriptors a server can have."""
    change = (
        "allow 65536: `ulimit -Hn 65536`, LimitNOFILE=65536 of systemd, --ulimit nofile=65536 of a "
        "container; or have fewer connections (--connections-max)"
    )
    if _is_unlimited(count) or count >= DESCRIPTORS_ENOUGH:
        return ok("descriptors", _count(count))
    judged = fail if count < DESCRIPTORS_FEW else warn
    return judged("descriptors", _count(count), change)


def of_locked_memory(limit: int, *, has_gpu: bool) -> Finding:
    """Judge how much memory can be locked. The store locks none; drivers of GPUs do."""
    found = "no limit" if _is_unlimited(limit) else bytes_text(limit)
    if not has_gpu:
        return ok("locked memory", f"{found}; without a GPU nothing is locked")
    if _is_unlimited(limit) or limit >= LOCKED_BYTES_ENOUGH:
        return ok("locked memory", found)
    change = "allow more: `ulimit -l unlimited`, LimitMEMLOCK=infinity, --ulimit memlock=-1"
    return warn("locked memory", f"{found}, of which staging for a GPU takes some", change)


def of_address_space(limit: int) -> Finding:
    """Judge RLIMIT_AS: a cache reserves addresses for its largest possible size."""
    if _is_unlimited(limit):
        return ok("address space", "no limit")
    change = "lift it (`ulimit -v unlimited`), and bound the memory by a control group instead"
    found = f"{bytes_text(limit)}, and a cache reserves more addresses than it uses"
    return warn("address space", found, change)


def of_maps(system: System) -> Finding:
    """Judge how many memory maps a process can have: each segment of the store is one map."""
    count = system.number("proc/sys/vm/max_map_count")
    if count is None:
        return ok("maps", "not said")
    if count >= MAPS_ENOUGH:
        return ok("maps", f"{count:,}")
    return warn("maps", f"{count:,}", f"`sysctl vm.max_map_count={MAPS_ENOUGH}`, or more")


def _is_unlimited(limit: int) -> bool:
    return limit in (resource.RLIM_INFINITY, -1)


def _count(count: int) -> str:
    return "no limit" if _is_unlimited(count) else f"{count:,} at most"
