"""The model of a disk loses what was not synced, and nothing else."""

from pathlib import Path

from tests.faults.disk import Choose, Disk, dropped, kept, torn
from tests.faults.recording import Call


def after(path: Path, calls: list[Call], choose: Choose) -> dict[str, bytes]:
    """Return the files that a power cut after `calls` leaves."""
    disk = Disk()
    for call in calls:
        disk.apply(call)
    root = path / f"found-{len(list(path.iterdir()))}"
    disk.write_to(root, choose)
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def created(path: str, data: bytes) -> list[Call]:
    return [Call("create", path), Call("write", path, data=data)]


def durable(path: str, data: bytes, folder: str = "") -> list[Call]:
    return [*created(path, data), Call("sync", path), Call("sync_directory", folder)]


def test_writes_tear_at_sectors_and_only_there(tmp_path):
    calls = durable("a", b"o" * 2048)
    calls += [Call("write", "a", offset=256, data=b"n" * 1500)]
    seen = {after(tmp_path, calls, torn([seed]))["a"] for seed in range(100)}
    old, new = b"o" * 2048, b"o" * 256 + b"n" * 1500 + b"o" * 292
    sectors = [{content[at : at + 512] for content in seen} for at in range(0, 2048, 512)]
    assert sectors == [{old[at : at + 512], new[at : at + 512]} for at in range(0, 2048, 512)]
    assert len(seen) == 2**4


def test_what_a_failed_sync_lost_stays_lost(tmp_path):
    calls = durable("a", b"o" * 1024)
    calls += [Call("write", "a", data=b"n" * 512), Call("failed_sync", "a")]
    calls += [Call("write", "a", offset=512, data=b"n" * 512), Call("sync", "a")]
    assert after(tmp_path, calls, dropped) == {"a": b"o" * 512 + b"n" * 512}
    assert after(tmp_path, calls, kept) == {"a": b"o" * 512 + b"n" * 512}
