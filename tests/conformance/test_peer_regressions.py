"""Bugs of other embedding stores (peers.md, section 9) that no other file of this folder holds.

Each test names the case and where it bit. Beside these: keys out of range in test_bad_keys.py,
empty calls in test_empty_calls.py, large offsets in test_large_tables.py, threads in
test_threads.py, damaged files in test_damaged_files.py.
"""

import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest

from embstore.config import Limits
from tests.conformance.backends import TINY, Embedded, UnsyncedFiles
from tests.conformance.cases import (
    OPTIMIZERS,
    assert_same,
    batch,
    config,
    generator,
    normal,
    ones,
)

KINDS = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


def pool(store):
    (found,) = store.stats()["cache"]["pools"]
    return found


@KINDS
def test_duplicates_in_one_batch(open_twin, optimizer):
    """Source: "duplicate keys inside one batch (lookup, insert, gradient)": HKV#141, torchrec#4525,
    DynamicEmb's LFU count fix. With more unique keys than slots, and under LFU.
    """
    twin, rng = open_twin(cache_bytes=48 << 10, policy="lfu"), generator(211)
    table = twin.create_table("a", **config(dim=24, rows=900, optimizer=optimizer))
    slots = pool(twin.store)["slots"]
    keys = np.concatenate([np.repeat(rng.permutation(900)[: slots + 50], 3), [7] * 300])
    keys = rng.permutation(keys)
    twin.on("a", "update", keys, normal(rng, len(keys), 24))
    twin.on("a", "assign", keys[::2], normal(rng, len(keys[::2]), 24))
    assert_same(table.lookup(keys), twin.reference.table("a").lookup(keys))


@KINDS
@pytest.mark.parametrize("count", [1, 2, 600, 5000])
def test_batch_from_one_key_to_far_more_than_the_cache(open_twin, optimizer, count):
    """Source: "empty batch, single key, batch larger than the cache": recsys-examples PRs 271, 342,
    349; Colossal's assert.
    """
    twin, rng = open_twin(cache_bytes=48 << 10), generator(212)
    table = twin.create_table("a", **config(dim=12, rows=5000, optimizer=optimizer))
    keys = rng.permutation(5000)[:count]
    for _ in range(2):
        assert_same(table.lookup(keys), twin.reference.table("a").lookup(keys))
        twin.on("a", "update", keys, normal(rng, count, 12))


@KINDS
@pytest.mark.parametrize(
    ("dim", "cache_bytes"), [(1, 20_011), (7, 33_333), (13, 77_777), (3, 16_384)]
)
def test_odd_dims_and_capacities(open_twin, optimizer, dim, cache_bytes):
    """Source: "capacity not a power of two, 1 bucket, odd dims (7, 13), dims not a multiple of 4":
    HKV#66, DynamicEmb's alignment tests, the padded optimizer layout fix (PR 426).
    """
    twin, rng = open_twin(cache_bytes=cache_bytes, limits=TINY), generator(213)
    twin.create_table("a", **config(dim=dim, rows=1500, optimizer=optimizer))
    for _ in range(4):
        twin.on("a", "update", *batch(rng, 700, 1500, dim))
    twin.reopen()


def test_as_few_slots_as_the_cache_can_have(open_twin):
    """Source: "1 bucket" of the same case: HKV#66. One slab of four slots, one bucket of eight."""
    twin, rng = open_twin(cache_bytes=280_000), generator(214)
    twin.create_table("a", **config(dim=4096, optimizer=OPTIMIZERS["adam"], rows=40))
    assert pool(twin.store)["slots"] == 4
    keys = rng.permutation(40)
    twin.on("a", "update", keys, normal(rng, 40, 4096))
    twin.on("a", "update", keys[:5], normal(rng, 5, 4096))


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_evicted_and_surviving_rows_are_all_rows(open_twin, policy):
    """Source: "evicted set + surviving set = input set; values of evicted rows intact; counts
    right": HKV#110, #241; recsys-examples PR 284.
    """
    twin, rng = open_twin(cache_bytes=64 << 10, policy=policy), generator(215)
    table = twin.create_table("a", **config(dim=32, rows=3000))
    keys = rng.permutation(3000)
    for part in np.split(keys, 30):
        twin.on("a", "update", part, normal(rng, 100, 32))
    figures = pool(twin.store)
    assert figures["evictions_dirty"] + figures["dirty_rows"] == 3000
    assert figures["evictions_clean"] == 0
    assert figures["resident_rows"] == figures["dirty_rows"] <= figures["slots"] < 3000
    assert twin.store.stats()["storage"]["log_rows"] == figures["evictions_dirty"]
    assert_same(table.lookup(keys), twin.reference.table("a").lookup(keys))


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_rows_of_lowest_score_leave(open_twin, policy):
    """Source: "lowest-score rows really evicted (rate test)": HKV's correct-rate tests."""
    twin = open_twin(cache_bytes=128 << 10, policy=policy)
    table = twin.create_table("a", **config(dim=16, rows=10_000))
    table.lookup(np.arange(5000, 7000))  # takes every slot
    slots = pool(twin.store)["slots"]
    hot, cold = np.arange(slots // 2), np.arange(1000, 1000 + slots // 2)
    for _ in range(5):
        table.lookup(hot)
    table.lookup(cold)
    table.lookup(hot)
    table.lookup(np.arange(9000, 9000 + slots // 3))  # these must replace cold rows, not hot ones
    before = pool(twin.store)["unique_hits"]
    table.lookup(hot)
    kept = pool(twin.store)["unique_hits"] - before
    assert kept == len(hot)


def test_drop_then_insert_in_a_full_cache(open_twin):
    """Source: "erase then insert on a full table": HKV#78."""
    twin, rng = open_twin(cache_bytes=64 << 10), generator(216)
    for name in "ab":
        twin.create_table(name, **config(dim=32, rows=2000))
        twin.on(name, "update", np.arange(500), normal(rng, 500, 32))
    for turn in range(4):
        twin.drop_table("a")
        twin.create_table("a", **config(dim=32, rows=2000))
        twin.on("a", "update", rng.permutation(2000)[:700], normal(rng, 700, 32))
        twin.on("b", "update", np.arange(turn, 900), normal(rng, 900 - turn, 32))
        twin.check()


@KINDS
@pytest.mark.parametrize("limits", [None, TINY], ids=["plain", "merging"])
def test_optimizer_state_survives_the_whole_way_round(open_twin, optimizer, limits):
    """Source: "optimizer state survives evict, reload, checkpoint, load": FBGEMM#5965, Colossal's
    AUC loss, the row-wise state dim fix (recsys-examples PR 305).
    """
    twin, rng = open_twin(cache_bytes=40 << 10, limits=limits), generator(217)
    table = twin.create_table("a", **config(dim=10, rows=2000, optimizer=optimizer))
    trained = rng.permutation(2000)[:300]
    twin.on("a", "update", trained, normal(rng, 300, 10))
    table.lookup(np.arange(2000))  # evict
    twin.on("a", "update", trained, normal(rng, 300, 10))  # reload
    twin.checkpoint("c")
    twin.on("a", "update", trained, normal(rng, 300, 10))
    twin.restore("c")
    twin.reopen()
    for found, wanted in zip(
        twin.store.table("a").read_rows(trained),
        twin.reference.table("a").read_rows(trained),
        strict=True,
    ):
        assert_same(found, wanted)
    twin.on("a", "update", trained, normal(rng, 300, 10))


@KINDS
def test_t_and_step_go_on_after_loading(open_twin, optimizer):
    """Source: "score/step consistency after load": recsys-examples PR 298. Adam's corrections are a
    function of t: one step too many or too few shows in every row.
    """
    digests = []
    for name, pauses in (("steady", ()), ("reopened", (2, 5)), ("restored", (3,))):
        twin, rng = open_twin(name), generator(218)
        twin.create_table("a", **config(optimizer=optimizer))
        for step in range(8):
            keys, grads = batch(rng, 50)
            twin.on("a", "update", keys, grads)
            if name == "reopened" and step in pauses:
                twin.reopen()
            if name == "restored" and step in pauses:
                twin.checkpoint("c")
                twin.on("a", "update", keys, grads)
                twin.restore("c")
        digests.append((twin.store.table("a").t, twin.store.table("a").digest()))
    assert len(set(digests)) == 1


@pytest.mark.needs("merges", "limits")
def test_checkpoint_is_what_it_was_while_training_goes_on(open_twin):
    """Source: "export while training; snapshot released": FBGEMM's snapshot tests,
    recsys-examples#125.
    """
    twin, rng = open_twin(limits=TINY, cache_bytes=64 << 10), generator(219)
    twin.create_table("a", **config(dim=32))
    for step in range(12):
        keys = rng.integers(0, 1000, 150)
        twin.on("a", "update", keys, normal(rng, 150, 32))
        if step % 4 == 3:
            twin.checkpoint(f"c{step}")
    for label in ("c11", "c7", "c3"):
        twin.restore(label)
        twin.check()


@pytest.mark.needs("merges", "limits", "directory")
def test_checkpoint_no_longer_kept_gives_its_room_back(open_twin, backend):
    """Source: "snapshot released" of the same case. The log is bounded by what is kept."""
    limits = Limits(segment_bytes=1 << 16, fold_bytes=1 << 16, fold_segments=3)
    twin, rng = open_twin(limits=limits, checkpoints_keep=1), generator(220)
    twin.create_table("a", **config(dim=64, rows=300))
    sizes = []
    for step in range(12):
        twin.on("a", "update", np.arange(300), normal(rng, 300, 64))
        twin.checkpoint(f"c{step}")
        twin.settle()
        sizes.append(sum(p.stat().st_size for p in (backend.path() / "log").iterdir()))
    assert max(sizes[6:]) <= 3 * max(sizes[:2])


@pytest.mark.needs("memory")
def test_checkpoint_takes_no_memory_of_the_size_of_the_cache(backend):
    """Source: "save without extra GPU memory": TFRA#371, HKV's PR on running out of it at a dump.

    On the host: dirty rows go out by pieces of a few MiB.
    """
    store = backend.open_store(cache_bytes=64 << 20)
    table = store.create_table("a", **config(dim=512, rows=20_000))
    table.assign(np.arange(20_000), np.ones((20_000, 512), np.float32))  # 39 MiB, all of it dirty
    tracemalloc.start()
    store.checkpoint("c")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert store.stats()["tables"]["a"]["dirty_rows"] == 0
    assert peak < 16 << 20


class SlowFiles(UnsyncedFiles):
    """Holds every write of a merge until it is let go."""

    def __init__(self, root):
        super().__init__(root)
        self.begun, self.let_go = threading.Event(), threading.Event()

    def reached(self, point):
        if point.startswith(("fold:", "compaction:")):
            self.begun.set()
            self.let_go.wait()


class Slow(Embedded):
    """An embedded store whose merges wait in the middle of their work."""

    def _files(self, path):
        self.files = SlowFiles(path)
        return self.files


@pytest.mark.needs("merges", "directory")
def test_closing_while_a_merge_is_writing(tmp_path):
    """Source: "shutdown with async write-back/back-fill pending": FBGEMM's DRAM+SSD C++ tests."""
    backend = Slow(tmp_path)
    store = backend.open_store(limits=TINY, checkpoints_keep=1)
    table = store.create_table("a", **config(dim=64))
    table.assign(np.arange(200), ones(200, 64))
    store.checkpoint("c")
    store.tables()
    assert backend.files.begun.wait(60)
    table.assign(np.arange(100), ones(100, 64, 2.0))
    digest = table.digest()
    closing = threading.Thread(target=store.close)
    closing.start()
    closing.join(0.05)
    backend.files.let_go.set()
    closing.join(60)
    assert not closing.is_alive()
    store = backend.open_store(limits=TINY, checkpoints_keep=1)
    backend.files.let_go.set()
    assert store.table("a").digest() == digest
    store.check_integrity()
    store.close()


ENDINGS = {
    "without closing": "",
    "by an error": "raise SystemExit(0)",
    "in an atexit hook": "import atexit; atexit.register(store.close)",
    "while a thread is in a call": (
        "import threading; threading.Thread(target=table.lookup, args=([1],)).start()"
    ),
}
LEAVE = """
import sys, numpy as np, embstore
from embstore import Constant, Sgd
from embstore.config import Limits
small = Limits(segment_bytes=8192, fold_bytes=4096, fold_segments=2)
store = embstore.open(sys.argv[1], cache_bytes=1 << 20, limits=small, threads=2)
table = store.create_table("a", dim=64, rows=9999, optimizer=Sgd(0.1), initializer=Constant(0.0))
table.assign(np.arange(3000), np.ones((3000, 64), np.float32))
table.lookup(np.arange(9999))
store.checkpoint("c")
"""


@pytest.mark.needs("directory", "process")
@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_interpreter_exit(backend, ending):
    """Source: "object destruction order / interpreter exit": HugeCTR#371, NVE's memblock notes.

    The process ends at once and in silence, with worker threads and a merge running; the store is
    at its last commit.
    """
    command = [sys.executable, "-W", "error", "-c", LEAVE + ending, str(backend.path())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with backend.open_store() as store:
        assert_same(store.table("a").lookup([0, 2999]), ones(2, 64))
        store.check_integrity()


def replies(store):
    """Train on calls large enough to be shared among threads; return everything that was said."""
    rng, said = generator(221), []
    table = store.create_table("a", **config(dim=64, rows=4000, optimizer=OPTIMIZERS["adam"]))
    keys = rng.integers(0, 4000, 6000)
    for _ in range(2):
        table.update(keys, normal(rng, 6000, 64), gradient_scale=1 / 3)
        pooled = table.lookup_pooled(keys, np.arange(0, 6001, 50), "mean")
        said += [table.lookup(keys).tobytes(), pooled.tobytes(), table.digest()]
    return said


def test_repeated_runs_are_the_same_to_the_bit(backend):
    """Source: "repeat run bit-identical in deterministic mode": FBGEMM's determinism, DynamicEmb's
    deterministic insert. With one thread and with several.
    """
    first, *others = (
        replies(backend.open_store(f"run-{run}", threads=threads, cache_bytes=4 << 20))
        for run, threads in enumerate((1, 1, 2, 4))
    )
    assert others == [first] * 3


def test_no_shared_memory_is_needed(tmp_path):
    """Source: "container with 64 MiB shared memory, without IPC/PID sharing": HPS docs,
    vllm#55906. The store maps its own files, and nothing of /dev/shm.
    """
    code = f"{LEAVE}\nprint(open('/proc/self/maps').read())"
    command = [sys.executable, "-c", code, str(tmp_path / "store")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert str(tmp_path) in done.stdout
    assert "/dev/shm" not in done.stdout
