"""`embstore.open`: options checked, storage and device opened, the engine made of both."""

import os
import threading
from contextlib import ExitStack

from embstore.arithmetic import jit
from embstore.cache.arena import HostCache
from embstore.cache.policies import policy_of
from embstore.cache_split import SPLITS, CacheSplit
from embstore.checks.arguments import expect, integer, number, one_of
from embstore.config import Limits
from embstore.device.base import Device
from embstore.device.choice import memory_share, open_device
from embstore.durability import LEVELS, Durability
from embstore.engine.engine import Engine
from embstore.errors import CapacityError, InvalidArgumentError
from embstore.handles.store import Store
from embstore.host.facts import HOST_PARTS, THREADS_MAX, free_bytes
from embstore.host.workers import READ_THREADS_MAX
from embstore.storage.files import Files
from embstore.storage.storage import Storage
from embstore.tables.logged import (
    Codec,
)

COMMIT_EVERY_S = 600.0
SYNC_EVERY_S = 1.0
RECOVERY_S = 30.0
DEFAULT_CACHE_BYTES = 1 << 30
"""Room for two million rows of 128 fp32 with row-wise state; a trainer's host has this to spare."""

_HOST_BYTES_MIN = 64 << 20
"""Less has hardly a slab for each of many row layouts, and no open is to fail for a default."""


def open(
    path: str | os.PathLike[str],
    *,
    device: str | Device = "auto",
    cache_bytes: int | str = DEFAULT_CACHE_BYTES,
    host_cache_bytes: int | None = None,
    cache_split: CacheSplit = "measured",
    policy: str = "lru",
    warm_up: float = 0.0,
    count_rate: float = 0.0,
    checkpoints_keep: int = 3,
    durability: Durability = "checkpoint",
    sync_every_s: float = SYNC_EVERY_S,
    recovery_s: float = RECOVERY_S,
    commit_every_s: float = COMMIT_EVERY_S,
    scrub_bytes_per_s: int = 0,
    dirty_bytes: int | None = None,
    read_only: bool = False,
    threads: int | None = None,
    limits: Limits | None = None,
    files: Files | None = None,
) -> Store:
    """Open the store in directory `path`, made if need be, at its last commit.

    Parameters
    ----------
    device : "cpu"; "cuda:N", GPU number N ("cuda": the first); "auto": the first GPU if there is
        one and CuPy is installed, else the CPU; or a device, which the store closes
    cache_bytes : memory of the device for resident rows, their index and staging; or a share, as
        "80%", of the memory of a GPU that is free and not kept for calls, or of the host's
    host_cache_bytes : of a GPU: pinned memory of the host, taken as rows need it, for level two of
        the cache: rows that left the GPU's memory, which its kernels move there and back. None: a
        quarter of the host's free memory; 0: there is no level two, and rows that leave are read
        from storage when they come back
    cache_split : how tables of several row layouts share `cache_bytes` once it is spent:
        "measured", so that as few lookups as possible miss; or "demand", first come, first served
    policy : which rows leave first: "lru"; "lfu", which ages; or "rank", by the profile that
        `Store.import_profile` was given
    warm_up : share of the cache, 0 to 1, that is filled by the profile once the store is open, in
        the background
    count_rate : share of lookups, 0 to 1, whose accesses are counted, for `Store.export_profile`
    checkpoints_keep : labels that can be restored, of each folder of labels (a/b is in the folder
        a); older ones are folded into the base
    durability : what survives a crash: "checkpoint", what the last commit has; "interval", all but
        what was done since the log was last synced; "commands", every command that has returned
    sync_every_s : of "interval": how often the log is synced
    recovery_s : with a log: the store commits by itself when executing it again would take longer
    commit_every_s : the store commits by itself when the last commit is so old, without a label;
        without a log a crash loses no more than was done in about that time; 0: only checkpoints
        and `close` do
    scrub_bytes_per_s : how fast the files are read and checked in the background, for damage that
        nobody has met yet; 0: not at all
    dirty_bytes : of rows that are newer in the cache than in the log, at most: above 3/4 of it they
        are logged in the background, above it calls that write become slower. It bounds how long a
        commit takes. None: of the rows in level two of a GPU's cache what storage writes in 30
        seconds, as measured; else no bound
    read_only : share the directory with other readers; nothing can be written
    threads : of the CPU device; on a GPU, those that copy between host and device; as many read
        rows of files; None: one a core, at most 4, or 8, and 16 that read
    limits : named bounds, see `embstore.config.Limits`
    files : the file operations; tests inject faults here

    Raises
    ------
    StoreInUseError : another process, or this one, holds the directory.
    TableMismatchError : another format, version or byte order.
    CorruptTableError : a file is missing or not what was written.
    CapacityError : the device has no memory for the cache.
    InvalidArgumentError : a bad option, a device that is not there, or a directory that is no
        store.
    """
    policy_of(policy)
    share = memory_share(cache_bytes)
    if share is None:
        integer(cache_bytes, 'cache_bytes, if no share as "80%",', 1)
    if host_cache_bytes is not None:
        integer(host_cache_bytes, "host_cache_bytes", 0)
    one_of(cache_split, "cache_split", SPLITS)
    integer(checkpoints_keep, "checkpoints_keep", 1)
    number(warm_up, "warm_up", 0, 1)
    number(count_rate, "count_rate", 0, 1)
    number(commit_every_s, "commit_every_s", 0, threading.TIMEOUT_MAX)
    number(recovery_s, "recovery_s", 0, threading.TIMEOUT_MAX)
    integer(scrub_bytes_per_s, "scrub_bytes_per_s", 0)
    if dirty_bytes is not None:
        integer(dirty_bytes, "dirty_bytes", 1)
    number(sync_every_s, "sync_every_s", 0, threading.TIMEOUT_MAX)
    one_of(durability, "durability", LEVELS)
    if threads is not None:
        integer(threads, "threads", 1, THREADS_MAX)
    limits = Limits() if limits is None else limits
    expect(isinstance(limits, Limits), "limits to be Limits", limits)
    if "\0" in os.fsdecode(path):
        raise InvalidArgumentError(f"expected a path that a file can have, found {path!r}")
    with ExitStack() as undo:  # where the engine cannot be made
        made = open_device(device, threads)
        undo.callback(made.close)
        jit.compile_kernels()  # those of the device too, and none in the middle of training
        budget = _budget(made, cache_bytes, share)
        host_cache = _host_cache(made, host_cache_bytes)
        storage = Storage(
            files or Files(path),
            read_only=read_only,
            checkpoints_keep=checkpoints_keep,
            limits=limits,
            threads=threads or min(READ_THREADS_MAX, os.cpu_count() or 1),
        )
        undo.callback(storage.close)
        engine = Engine(
            storage,
            made,
            cache_bytes=budget,
            host_cache=host_cache,
            cache_split=cache_split,
            policy=policy,
            limits=limits,
            count_rate=count_rate,
            commit_every_s=commit_every_s,
            durability=durability,
            sync_every_s=sync_every_s,
            recovery_s=recovery_s,
            scrub_bytes_per_s=scrub_bytes_per_s,
            dirty_bytes=dirty_bytes,
            codec=_wire_codec,
        )
        undo.pop_all()
    engine.hot_pins.start()
    engine.warming.start(warm_up)
    engine.commits.start()
    engine.scrubber.start()
    return Store(engine)


def _budget(device: Device, cache_bytes: int | str, share: float | None) -> int:
    """Return the bytes of the cache, which the device has."""
    budget = int(cache_bytes if share is None else share * device.memory.cache_bytes_max())
    if not budget:
        raise CapacityError(
            f"cache_bytes is {cache_bytes!r} of nothing: {device.name} has no memory free beside "
            "what is kept for calls; end what else uses it"
        )
    device.memory.check_budget(budget, 0)
    return budget


def _host_cache(device: Device, asked: int | None) -> HostCache:
    """Return how large level two of the cache may be."""
    if device.levels is None:
        if asked:
            raise InvalidArgumentError(
                f"expected no host_cache_bytes on device {device.name!r}, found {asked}: "
                "the cache is in the host's memory there; give as much more cache_bytes"
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
    """Return what a command log is written in; loaded when there is one."""
    from embstore_proto.records import WireRecords

    return WireRecords()
