"""Bytes that each kernel of the yardstick's step moves, counted where the host runs the kernels.

``python -m tests.bench.gpu.moved`` prints the bytes; it needs g++ and no GPU. The call is a small
version of the standard call: the same share of its keys is distinct, the same share occurs once,
and hot keys occur in proportion. All rows are resident, among as many other rows as in a run of
eight batches.

There are two figures for each key of the call. **Asked** bytes are those of loads and stores as
each thread executes them, even if the 32 lanes of a warp load one address, which a GPU does once;
values that g++ kept in registers are not included. **Sectors** counts 32 bytes for each sector of
memory from which a kernel loads, and for each sector to which it stores, once per kernel. This is
what a kernel moves if a cache keeps everything that the kernel uses again, and is empty when the
kernel ends.
"""

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator

import numpy as np

from embstore.device.gpu import GpuDevice
from tests.bench.gpu.law import Keys, Zipf
from tests.bench.gpu.scale import Scale
from tests.bench.gpu.stores import DeviceStore
from tests.kernels.emulation.build import Bytes
from tests.kernels.emulation.runtime import EmulatedRuntime

DIM = 128
PART = 32
"""The standard call is so many times larger than one whose bytes are printed."""
ROWS_BESIDE = 4.94
"""Of a run of eight batches, for each unique key of one."""

Moved = dict[str, list[tuple[str, Bytes]]]


def keys_in_small(scale: Scale, part: int) -> tuple[Keys, int]:
    """Return keys and how many rows there are. Of `part` keys that are alike in heat one stays."""
    counts = np.unique(Zipf(scale).batch(scale.keys), return_counts=True)[1]
    running = np.cumsum(np.sort(counts)[::-1])[part - 1 :: part]
    counts = np.diff(np.rint(running / part), prepend=0).astype(np.int64)
    rows = int((1 + ROWS_BESIDE) * len(counts))
    rng = np.random.default_rng(scale.seed)
    numbers = rng.permutation(rows)[: len(counts)]
    return rng.permutation(np.repeat(numbers, counts)), rows


def measure(path: pathlib.Path, keys: Keys, rows: int) -> Moved:
    """Return kernel and bytes of each launch of a lookup of keys, and of its update."""
    runtime = EmulatedRuntime(counting=True)
    device = GpuDevice(runtime, 1)
    store = DeviceStore(
        path, device, cache_bytes=1024 * rows, rows=rows, dim=DIM, host_cache_bytes=0
    )
    with contextlib.closing(store):
        store.table.lookup(np.arange(rows))
        rng = np.random.default_rng(len(keys))
        gradients = rng.standard_normal((len(keys), DIM), np.float32)
        d_keys, d_gradients = map(device.memory.upload, (keys, gradients))
        d_out = device.memory.allocate(len(keys), np.float32, width=DIM)
        found = {}
        for name, call in {
            "lookup": lambda: store.lookup(d_keys, d_out),
            "update": lambda: store.update(d_keys, d_gradients),
        }.items():
            call()
            device.memory.download(d_keys)
            runtime.moved.clear()
            call()
            device.memory.download(d_keys)
            found[name] = list(runtime.moved)
    return found


def table(found: Moved, keys: int, standard_keys: int) -> Iterator[str]:
    """Yield lines of Markdown: bytes a key, and megabytes of the standard call."""
    yield "| call | kernel | asked, bytes a key | sectors, bytes a key | sectors, standard call |"
    yield "| --- | --- | --- | --- | --- |"
    for call, launches in found.items():
        for kernel, moved in [*launches, ("**all**", total(launches))]:
            asked, sectors = (n / keys for n in sums(moved))
            standard = sectors * standard_keys
            yield f"| {call} | {kernel} | {asked:.0f} | {sectors:.0f} | {standard / 1e6:.0f} MB |"


def total(launches: list[tuple[str, Bytes]]) -> Bytes:
    return Bytes(*np.sum([moved for _, moved in launches], axis=0).tolist())


def sums(moved: Bytes) -> tuple[int, int]:
    """Return bytes asked for, and bytes of sectors, loaded and stored."""
    return moved.loaded + moved.stored, moved.loaded_sectors + moved.stored_sectors


def main() -> None:
    scale = Scale()
    keys, rows = keys_in_small(scale, PART)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(pathlib.Path(folder, "store"), keys, rows)
    print("\n".join(table(found, len(keys), scale.keys)))


if __name__ == "__main__":
    main()
