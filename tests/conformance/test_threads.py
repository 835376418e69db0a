"""Several threads on one store: calls happen one after the other, in the order of their numbers.

Source: "eviction racing an in-place update", FBGEMM#5954, #5807, #2963; "rehash/expand while other
threads read", HKV#154; "eviction under a concurrent read", FBGEMM.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from embstore.config import Sgd
from embstore.errors import EmbstoreError, OutcomeUnknownError, StoreClosedError
from tests.conformance.backends import TINY
from tests.conformance.cases import OPTIMIZERS, assert_same, batch, config, is_waiting, normal, ones
from tests.conformance.sessions.training import until

THREADS = 4


@pytest.fixture(autouse=True)
def often():
    """Have threads take turns a hundred times as often as they usually do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


def together(work, count=THREADS):
    """Run work(0), work(1), ... at the same time, and return what each returned."""
    start = threading.Barrier(count)

    def run(place):
        start.wait()
        return work(place)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def draw(rng, width):
    """Return one command as (verb, arguments, options): of a table "a", or of several."""
    keys, grads = batch(rng, int(rng.integers(1, 120)), 2000, 16)
    rows, state = normal(rng, len(keys), 16), normal(rng, len(keys), width)
    mean = (keys, [0, len(keys)], grads[:1], "mean")
    return [
        ("update", (keys, grads), {"learning_rate": float(rng.random())}),
        ("update", (keys, grads), {"gradient_scale": float(rng.random())}),
        ("update", (keys, grads * np.float32(np.inf)), {"on_nonfinite": "skip"}),
        ("update_pooled", mean, {}),
        ("assign", (keys, rows), {}),
        ("put_rows", (keys, rows, state, int(rng.integers(3))), {}),
        ("several", ({"a": (keys, grads), "b": (keys, rows)},), {}),
        ("ranks", ([{"a": (keys, grads)}, {"c": (keys, grads[:, :5].copy())}],), {}),
    ][rng.integers(8)]


def do(store, command):
    verb, arguments, options = command
    if verb == "several":
        return store.update(*arguments, **options)
    if verb == "ranks":
        return store.update_ranks(*arguments, **options)
    return getattr(store.table("a"), verb)(*arguments, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"cache_bytes": 64 << 10, "limits": TINY},
        {"cache_bytes": 8 << 20, "threads": 2},
        {"cache_bytes": 96 << 10, "policy": "lfu"},
    ],
    ids=["evicting and merging", "growing", "lfu"],
)
def test_final_content_is_that_of_a_serial_replay(open_twin, options):
    """Writers, and between their commands lookups, flushes, digests, checkpoints."""
    twin = open_twin(**options)
    store = twin.store
    for name, dim, kind in (("a", 16, "adam"), ("b", 16, "adam"), ("c", 5, "adagrad")):
        made = config(dim=dim, rows=2000, optimizer=OPTIMIZERS[kind])
        twin.create_table(name, **made)
    width = twin.reference.table("a").config.state_dim
    first = store.command

    def work(place):
        rng, done = np.random.default_rng([201, place]), []
        for step in range(40):
            command = draw(rng, width)
            done.append((do(store, command), command))
            keys = rng.integers(0, 2000, 150)
            store.lookup({"a": keys, "c": keys}, admit=bool(step % 3))
            if step % 13 == place:
                store.flush()
                store.table("b").digest()
                store.checkpoint(f"{place}-{step}")
        return done

    done = sorted((d for part in together(work) for d in part), key=lambda d: d[0].command)
    numbers = [acknowledged.command for acknowledged, _ in done]
    assert numbers == list(range(first + 1, first + 1 + len(done)))
    for acknowledged, command in done:
        expected = do(twin.reference, command)
        t = twin.reference.table("a").t if expected is None else expected
        assert acknowledged.t == t


@pytest.mark.needs("one_store")
def test_a_lookup_sees_every_command_whole(backend):
    """Two tables, updated together: a lookup of both finds one value everywhere."""
    store = backend.open_store(cache_bytes=64 << 10)
    for name in "ab":
        made = config(dim=32, rows=3000, optimizer=Sgd(1.0), seed=1)
        store.create_table(name, **made).assign(np.arange(200), ones(200, 32, 0.0))
    keys, stop = np.arange(200), threading.Event()

    def work(place):
        if place == 0:
            for _ in range(60):
                store.update({n: (keys, ones(200, 32, -1.0)) for n in "ab"})
            stop.set()
            return 0
        seen = set()
        rng = np.random.default_rng([202, place])
        while not stop.is_set():
            rows = store.lookup({"b": keys, "a": keys[::-1]}, admit=place % 2 == 0)
            values = np.unique(np.concatenate([rows["a"], rows["b"]]))
            assert len(values) == 1
            seen.add(float(values[0]))
            store.table("a").lookup(rng.integers(200, 3000, 400))  # push rows out
        return len(seen)

    together(work)
    assert_same(store.table("a").lookup(keys), ones(200, 32, 60.0))
    store.check_integrity()


def test_readers_while_the_cache_and_its_index_grow(open_table):
    """Source: "rehash/expand while other threads read", HKV#154."""
    twin, table = open_table(cache_bytes=4 << 20, a=config(dim=8, rows=50_000))
    wanted = twin.reference.table("a").lookup(np.arange(300))

    def work(place):
        for step in range(30):
            if place == 0:
                table.lookup(np.arange(step * 1500, step * 1500 + 1500))
            else:
                assert_same(table.lookup(np.arange(300)), wanted)

    before = twin.store.stats()["cache"]["pools"][0]["slots"]
    together(work)
    assert twin.store.stats()["cache"]["pools"][0]["slots"] > before


def test_several_threads_create_the_same_table(backend):
    store = backend.open_store()
    tables = together(lambda place: store.create_table("a", **config()))
    together(lambda place: tables[place].update([place], ones(1)))
    assert (store.tables(), store.table("a").t) == (["a"], THREADS)
    assert store.command == 2 * THREADS


def test_closing_under_running_calls(backend):
    """Each call is answered or refused; what was answered before is there after opening again.

    Over the wire there is a third end: a call cut off with its connection, which may have been
    applied; and on several shards a call that only some of them applied. Each thread has at most
    one of them.
    """
    store = backend.open_store(cache_bytes=64 << 10)
    table = store.create_table("a", **config(dim=16))
    ready = threading.Barrier(THREADS)

    def work(place):
        if place == 0:
            ready.wait()
            store.close()
            return 0, 0
        last, rng = 0, np.random.default_rng([203, place])
        try:
            for step in range(10_000):
                if step == 10:
                    ready.wait()
                last = table.update(*batch(rng, 50, dim=16)).t
        except StoreClosedError:
            return last, 0
        except OutcomeUnknownError:
            assert backend.is_remote or backend.shards > 1
            return last, 1
        raise AssertionError("the store was never closed")

    lasts, cut_off = zip(*together(work), strict=True)
    with backend.open_store() as store:
        assert max(lasts) <= store.table("a").t <= max(lasts) + sum(cut_off)
        store.check_integrity()


PROPERTIES = ("t", "rows", "dim", "learning_rate", "optimizer", "initializer", "seed")


def test_properties_are_answered_while_another_thread_restores(backend):
    """A table that a restore keeps is there all the time: its handle may not say that it is gone.

    The restore is looked into where it makes the table's pool anew, by a thread that may have to
    wait until the restore is over.
    """
    store = backend.open_store()
    table = store.create_table("a", **config())
    store.checkpoint("c")
    device, answers, lookers = backend.engine(store).device, [], []
    allocate = device.memory.allocate_slots

    def look():
        try:
            answers.append({name: getattr(table, name) for name in PROPERTIES})
        except EmbstoreError as exc:
            answers.append(exc)

    def allocate_while_looking(*arguments):
        lookers.append(threading.Thread(target=look))
        lookers[-1].start()
        if not backend.is_remote:  # else it waits for the answer of a server that restores
            until(lambda: not lookers[-1].is_alive() or is_waiting(lookers[-1]))
        return allocate(*arguments)

    expected = {name: getattr(table, name) for name in PROPERTIES}
    device.memory.allocate_slots = allocate_while_looking
    store.restore("c")
    assert lookers, "the restore did not make a pool"
    for looker in lookers:
        looker.join()
    assert answers == [expected] * len(lookers)
