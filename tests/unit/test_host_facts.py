"""The memory that this process may have: of the system, and as control groups limit it."""

from pathlib import Path

import pytest

from embstore.host.facts import free_bytes, host_facts

KIB, MIB = 1 << 10, 1 << 20
MEMINFO = "MemTotal: 8192 kB\nMemFree: 100 kB\nMemAvailable: 4096 kB\nHugePages_Total: 0\n"
TWO = "sys/fs/cgroup"
ONE = "sys/fs/cgroup/memory"
HUGE = str(2**63 - 4096)


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 4 * MIB),
        ({f"{TWO}/memory.max": "max", f"{TWO}/memory.current": "9"}, 4 * MIB),
        # of a container that sees its group as the root, with page cache that can be dropped
        (
            {
                f"{TWO}/memory.max": str(3 * MIB),
                f"{TWO}/memory.current": str(2 * MIB),
                f"{TWO}/memory.stat": f"anon 5\ninactive_file {MIB}\nactive_file 7\n",
            },
            2 * MIB,
        ),
        (
            {
                f"{ONE}/memory.limit_in_bytes": str(3 * MIB),
                f"{ONE}/memory.usage_in_bytes": str(2 * MIB),
                f"{ONE}/memory.stat": f"inactive_file 3\ntotal_inactive_file {KIB}\n",
            },
            MIB + KIB,
        ),
        ({f"{ONE}/memory.limit_in_bytes": HUGE, f"{ONE}/memory.usage_in_bytes": "1"}, 4 * MIB),
        # of a service, whose group is below the root's; the one above has less
        (
            {
                "proc/self/cgroup": "0::/system.slice/embstore.service\n",
                f"{TWO}/system.slice/memory.max": str(MIB),
                f"{TWO}/system.slice/memory.current": str(KIB),
                f"{TWO}/system.slice/embstore.service/memory.max": str(2 * MIB),
                f"{TWO}/system.slice/embstore.service/memory.current": str(KIB),
            },
            MIB - KIB,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/one\n4:memory:/one\n0::/\n",
                f"{ONE}/one/memory.limit_in_bytes": str(MIB),
                f"{ONE}/one/memory.usage_in_bytes": str(2 * MIB),
            },
            0,
        ),
    ],
    ids=["none", "unlimited", "v2", "v1", "v1 unlimited", "v2 nested", "v1 exceeded"],
)
def test_free_memory_is_what_the_system_has_and_every_group_leaves(tmp_path, files, free):
    for name, text in ({"proc/meminfo": MEMINFO} | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_bytes(tmp_path) == free


def test_this_host_has_memory():
    facts = host_facts()
    assert 0 < facts["memory_free_bytes"] <= facts["memory_bytes"]
    assert free_bytes(Path("/nowhere")) > 0, "where nothing is said"
