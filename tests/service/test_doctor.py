"""`embstore doctor`: each warning, by what a system with that fault says of itself, and how to mend
it; by limits and file systems that a process really has, where it can have them."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from embstore_server.cli import exits, main
from embstore_server.doctor import disk, installed, limits, machine
from embstore_server.doctor.disk import Speed
from embstore_server.doctor.findings import Finding, System
from tests.style.sources import ROOT
from tests.unit.flushing import FLUSH_TO_ZERO, in_new_thread, needs_glibc

GIB = 1 << 30


def system(root: Path, files: Mapping[str, str]) -> System:
    """Return a system that says this of itself."""
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return System(root)


def check(finding: Finding, status: str, *said: str) -> None:
    assert finding.status == status, finding
    assert bool(finding.change) == (status != "ok"), finding
    assert all(words in finding.found + finding.change for words in said), finding


# What a process really has


def _narrow() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def test_a_narrow_process_is_told_what_to_widen():
    shared = Path("/dev/shm")
    words = [sys.executable, "-m", "embstore_server", "doctor", str(shared), "--json"]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=600, preexec_fn=_narrow
    )
    assert done.returncode == exits.FAILED, done.stderr
    found = {one["name"]: Finding(**one) for one in json.loads(done.stdout)["findings"]}
    check(found["descriptors"], "fail", "200 at most", "LimitNOFILE=65536")
    check(found["address space"], "warn", "1 TiB", "ulimit -v")
    check(found["processors"], "warn", "1 processors")
    check(found["file system"], "warn", "tmpfs", "restart")
    check(found["denormals"], "ok")
    assert {"ok", "warn", "fail"} >= {one.status for one in found.values()}


def test_people_get_a_line_each_with_what_to_change(tmp_path, capsys):
    status = main(["doctor", str(tmp_path / "not" / "yet")])
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if line[0] != " "} <= {"ok", "warn", "fail"}
    assert status == (exits.FAILED if any(line.startswith("fail") for line in lines) else exits.OK)
    for name in (
        "descriptors",
        "disk syncs",
        "clock",
        "denormals",
        "huge pages",
        "versions",
        "GPU",
    ):
        assert any(line.split(":")[0].endswith(f" {name}") for line in lines), name
    assert list(tmp_path.iterdir()) == [], "what was measured with is gone"


# What a system says of itself

CPU_MAX = "sys/fs/cgroup/cpu.max"
CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"
PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
OLD_CPU = "processor\t: 0\nmodel name\t: Some CPU @ 2.4GHz\nflags\t\t: fpu sse sse2 sse4_2 avx\n"
MEMINFO = "MemTotal: 2097152 kB\nMemAvailable: 2097152 kB\nSwapTotal: 1024 kB\nHugePages_Total: 0\n"
GROUP = {
    "proc/meminfo": MEMINFO,
    "sys/fs/cgroup/memory.max": "536870912\n",
    "sys/fs/cgroup/memory.current": "1048576\n",
}
Case = tuple[Callable[[System], Finding], Mapping[str, str], str, tuple[str, ...]]
FILES: list[Case] = [
    (
        limits.of_maps,
        {"proc/sys/vm/max_map_count": "4096\n"},
        "warn",
        ("4,096", "sysctl vm.max_map_count"),
    ),
    (limits.of_maps, {"proc/sys/vm/max_map_count": "262144\n"}, "ok", ()),
    (machine.of_clock_source, {CLOCK: "hpet\n"}, "warn", ("hpet", "tsc")),
    (machine.of_clock_source, {CLOCK: "kvm-clock\n"}, "ok", ()),
    (
        partial(machine.of_cores, 16),
        {CPU_MAX: "100000 100000"},
        "warn",
        ("time of 1 by",),
    ),
    (partial(machine.of_cores, 16), {CPU_MAX: "max 100000"}, "ok", ()),
    (machine.of_processor, {"proc/cpuinfo": OLD_CPU}, "warn", ("Some CPU", "AVX2")),
    (machine.of_processor, {"proc/cpuinfo": OLD_CPU.replace("avx", "avx avx2")}, "ok", ()),
    (machine.of_memory, {"proc/meminfo": MEMINFO}, "ok", ("2 GiB",)),
    (machine.of_memory, GROUP, "warn", ("511 MiB", "1 MiB of swap")),
    (partial(machine.of_level_two, has_gpu=False), GROUP, "ok", ("none: without a GPU",)),
    (partial(machine.of_level_two, has_gpu=True), GROUP, "warn", ("127.8 MiB", "go to the disk")),
    (
        partial(machine.of_level_two, has_gpu=True),
        {"proc/meminfo": "MemAvailable: 8388608 kB\n"},
        "ok",
        ("2 GiB by default", "33,554,432 rows of 64 bytes", "1.25 GiB of the GPU's", "528 bytes"),
    ),
    (
        machine.of_overcommit,
        {"proc/sys/vm/overcommit_memory": "2\n"},
        "warn",
        ("overcommit_memory=0",),
    ),
    (machine.of_overcommit, {"proc/sys/vm/overcommit_memory": "1\n"}, "ok", ()),
    (machine.of_huge_pages, {PAGES: "always madvise [never]\n"}, "warn", ("never", "echo madvise")),
    (machine.of_huge_pages, {PAGES: "always [madvise] never\n"}, "ok", ()),
]


@pytest.mark.parametrize(("look", "files", "status", "said"), FILES)
def test_what_files_say(look, files, status, said, tmp_path):
    check(look(system(tmp_path, files)), status, *said)


def test_what_numbers_say():
    for count, status in ((200, "fail"), (1024, "warn"), (65536, "ok"), (-1, "ok")):
        check(limits.of_descriptors(count), status)
    check(limits.of_locked_memory(65536, has_gpu=False), "ok")
    check(limits.of_locked_memory(65536, has_gpu=True), "warn", "64 KiB", "memlock=-1")
    check(limits.of_locked_memory(resource.RLIM_INFINITY, has_gpu=True), "ok", "no limit")
    check(disk.of_room(10 << 20, None), "fail", "10 MiB")
    check(disk.of_room(2 * GIB, 10**6), "warn", "2 GiB")
    check(disk.of_room(100 * GIB, 500), "warn", "500 files", "inodes")
    check(disk.of_room(100 * GIB, None), "ok")
    for finding in disk.of_speed(Speed(write_bytes_per_s=80e6, sync_s=0.025, read_s=0.009)):
        check(finding, "warn")
    for finding in disk.of_speed(Speed(write_bytes_per_s=1e9, sync_s=0.0005, read_s=0.0001)):
        check(finding, "ok")
    check(machine.of_clock(synchronized=False), "warn", "chrony")
    check(machine.of_clock(synchronized=True), "ok")
    check(machine.of_shared_bytes(64 << 20), "warn", "64 MiB", "--shm-size")
    check(machine.of_shared_bytes(2 * GIB), "ok")
    check(installed.of_gpu_memory(lambda: (75 * GIB, 80 * GIB)), "ok", "80% takes 58.4 GiB")
    check(installed.of_gpu_memory(lambda: (40 * GIB, 80 * GIB)), "warn", "30.4 GiB", "2GiB")
    check(installed.of_gpu_memory(lambda: (GIB, 80 * GIB)), "warn", "80% takes 0 ")
    check(installed.of_gpu_memory(lambda: divmod(1, 0)), "warn", "division")
    one = {"embstore": "1", "numpy": "2.4"}
    check(installed.of_versions(one), "warn", "no numba, fastapi", "pip")
    check(installed.of_versions({"numba": "1", "fastapi": "1", "uvicorn": "1"}), "ok", "Python 3.")


def test_this_system_is_asked(tmp_path):
    found = disk.measured(tmp_path)
    assert min(found.write_bytes_per_s, found.sync_s, found.read_s) > 0
    assert machine.clock_is_synchronized() in (True, False, None)
    assert installed.version_of("numpy") and not installed.version_of("no-such-package")


def test_a_directory_that_takes_no_files(tmp_path):
    file = tmp_path / "file"
    file.touch()
    (finding,) = disk.looked_at(System(), file)
    check(finding, "fail", "takes no files")
    *_, finding = disk.looked_at(System(), Path("/proc/store"))
    check(finding, "fail")


MOUNTS = """overlay / overlay rw,relatime,lowerdir=/l,upperdir=/u,workdir=/w 0 0
tmpfs {0}/memory tmpfs rw,size=65536k 0 0
files.example:/export {0}/far nfs4 rw,relatime,vers=4.2 0 0
/dev/nvme0n1p2 {0}/data ext4 rw,relatime 0 0
"""


@pytest.mark.parametrize(
    ("place", "kind", "status"),
    [
        ("data/store", "ext4", "ok"),
        ("memory", "tmpfs", "warn"),
        ("far", "nfs4", "warn"),
        ("", "overlay", "warn"),
        ("farther", "overlay", "warn"),
    ],
)
def test_file_systems(place, kind, status, tmp_path):
    mounted = system(tmp_path / "root", {"proc/mounts": MOUNTS.format(tmp_path)})
    found = disk.file_system(mounted, tmp_path / place)
    assert found == kind
    check(disk.of_file_system(found, tmp_path / place), status, kind)


@needs_glibc
def test_denormals():
    check(in_new_thread(machine.of_denormals), "ok")
    check(in_new_thread(machine.of_denormals, FLUSH_TO_ZERO), "warn", "flush-to-zero")


NVRM = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC"
)


def test_gpus(tmp_path):
    def unusable() -> str:
        raise RuntimeError("cudaErrorInsufficientDriver")

    check(installed.of_gpu(system(tmp_path, {}), {}, unusable), "ok", "none")
    driven = system(tmp_path, {"proc/driver/nvidia/version": NVRM})
    twelve, both = {"cupy-cuda12x": "14.2"}, {"cupy-cuda12x": "14.2", "cupy-cuda13x": "14.2"}
    check(installed.of_gpu(driven, {}, unusable), "warn", "550.54.15", "no CuPy", "cuda12")
    check(installed.of_gpu(driven, both, unusable), "warn", "several")
    check(installed.of_gpu(driven, twelve, unusable), "warn", "InsufficientDriver", "newer driver")
    check(installed.of_gpu(driven, twelve, lambda: "1 of NVIDIA H100"), "ok", "H100")
