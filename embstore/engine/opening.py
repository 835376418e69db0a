"""`embstore.open`: it checks options, opens storage and device, and makes an engine that uses them.

A server calls `open_engine`, which returns the engine itself, without a `Store` object around it.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from embstore.arithmetic import jit
from embstore.cache.arena import HostCache
from embstore.choices import CacheSplit, Durability
from embstore.config import Limits
from embstore.device.base import Device
from embstore.device.choice import memory_share, open_device
from embstore.engine.engine import Engine
from embstore.errors import CapacityError, CorruptTableError, InvalidArgumentError
from embstore.host.facts import HOST_PARTS, free_bytes
from embstore.host.workers import READ_THREADS_MAX
from embstore.options import StoreOptions, describing
from embstore.storage.files import Files
from embstore.storage.storage import Storage
from embstore.tables.logged import Codec

if TYPE_CHECKING:
    from embstore.handles.store import Store

_HOST_BYTES_MIN = 64 << 20
"""Least default size of level two. If the default were smaller, a store with many row layouts might
need more slabs than level two contains, and opening would fail although no size was requested."""


@describing(StoreOptions)
def open(
    path: str | os.PathLike[str],
    *,
    device: str | Device = StoreOptions.device,
    cache_bytes: int | str = StoreOptions.cache_bytes,
    host_cache_bytes: int | None = StoreOptions.host_cache_bytes,
    cache_split: CacheSplit = StoreOptions.cache_split,
    policy: str = StoreOptions.policy,
    warm_up: float = StoreOptions.warm_up,
    count_rate: float = StoreOptions.count_rate,
    checkpoints_keep: int = StoreOptions.checkpoints_keep,
    durability: Durability = StoreOptions.durability,
    sync_every_s: float = StoreOptions.sync_every_s,
    recovery_s: float = StoreOptions.recovery_s,
    commit_every_s: float = StoreOptions.commit_every_s,
    scrub_bytes_per_s: int = StoreOptions.scrub_bytes_per_s,
    dirty_bytes: int | None = StoreOptions.dirty_bytes,
    read_only: bool = StoreOptions.read_only,
    threads: int | None = StoreOptions.threads,
    limits: Limits | None = StoreOptions.limits,
    files: Files | None = None,
) -> "Store":
    """Open the store in directory `path` at its last commit; make the directory if it is missing.

    The options are the fields of `embstore.options.StoreOptions`. `device` can also be a device
    that is already open; the store will close it. `files` are the file operations; tests pass their
    own to inject faults.

    Raises
    ------
    StoreInUseError : another process, or this process, has the store open.
    TableMismatchError : the store has another format, version or byte order.
    CorruptTableError : a file is missing or damaged.
    CapacityError : the device has no memory for the cache.
    InvalidArgumentError : an option is wrong, there is no such device, or the directory is no
        store.
    """
    given = {name: value for name, value in locals().items() if name not in ("path", "files")}
    from embstore.handles.store import Store  # imported here, because a server has none

    return Store(open_engine(path, StoreOptions(**given), files))


def open_engine(
    path: str | os.PathLike[str], options: StoreOptions, files: Files | None = None
) -> Engine:
    """Open a store, and return its engine; see `open`."""
    threads, limits = options.threads, options.limits or Limits()
    if "\0" in os.fsdecode(path):
        raise InvalidArgumentError(f"expected a path that a file can have, found {path!r}")
    with saying_how_to_mend(path), ExitStack() as undo:  # undone if the engine cannot be made
        made = open_device(options.device, threads)
        undo.callback(made.close)
        jit.compile_kernels()  # the device's kernels too: none is then compiled during training
        budget = _budget(made, options.cache_bytes)
        host_cache = _host_cache(made, options.host_cache_bytes)
        storage = Storage(
            files or Files(path),
            read_only=options.read_only,
            checkpoints_keep=options.checkpoints_keep,
            limits=limits,
            threads=threads or min(READ_THREADS_MAX, os.cpu_count() or 1),
        )
        undo.callback(storage.close)
        engine = Engine(storage, made, options, budget, host_cache, _wire_codec)
        undo.pop_all()
    engine.hot_pins.start()
    engine.warming.start(options.warm_up)
    engine.commits.start()
    engine.scrubber.start()
    return engine


@contextmanager
def saying_how_to_mend(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add advice about repair to an error about a damaged file."""
    try:
        yield
    except CorruptTableError as exc:
        raise CorruptTableError(
            f"{exc}; `embstore verify {os.fsdecode(path)}` lists all damage: put undamaged copies "
            "of these files back, restore a backup, or promote a standby"
        ) from exc


def _budget(device: Device, cache_bytes: int | str) -> int:
    """Return the size of the cache in bytes, after checking that the device has enough memory."""
    share = memory_share(cache_bytes)
    budget = int(cache_bytes if share is None else share * device.memory.cache_bytes_max())
    if not budget:
        raise CapacityError(
            f"cache_bytes is {cache_bytes!r} of nothing: {device.name} has no free memory besides "
            "the part that is kept for calls; end other programs that use it"
        )
    device.memory.check_budget(budget, 0)
    return budget


def _host_cache(device: Device, asked: int | None) -> HostCache:
    """Return the size of level two of the cache, and the reason for that size."""
    if device.levels is None:
        if asked:
            raise InvalidArgumentError(
                f"expected no host_cache_bytes on device {device.name!r}, found {asked}: the "
                "cache is in the host's memory there; add it to cache_bytes instead"
            )
        return HostCache(0, f"none: on device {device.name} the cache is in the host's memory")
    if asked is not None:
        return HostCache(asked, "as given" if asked else "none, as given")
    free = free_bytes()
    if free // HOST_PARTS < _HOST_BYTES_MIN:
        return HostCache(
            0, f"none: a quarter of the host's free memory, {free} bytes, is too little"
        )
    return HostCache(free // HOST_PARTS, f"a quarter of the host's free memory, {free} bytes")


def _wire_codec() -> Codec:
    """Return the codec of a command log, imported on demand."""
    from embstore_proto.records import WireRecords

    return WireRecords()
