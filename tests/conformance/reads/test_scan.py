"""scan: the written rows of a table in order, as of one command, whatever goes on meanwhile."""

import threading

import numpy as np
import pytest

from embstore import commands
from embstore.engine import scans
from embstore.errors import (
    CheckpointNotFoundError,
    CorruptTableError,
    InvalidArgumentError,
    SessionExpiredError,
    TableNotFoundError,
)
from tests.conformance.backends import TINY
from tests.conformance.cases import (
    KINDS,
    OPTIMIZERS,
    assert_same,
    batch,
    config,
    damage_first_row,
    engine_of,
    generator,
    grow,
    normal,
    ones,
    refused,
)
from tests.conformance.spread import rows_by_key
from tests.conformance.twin import Commit


def in_order(scan, keys):
    """Return keys of a scan as they are; sparse ones, which come in the order of files, sorted."""
    return sorted(keys) if scan.config.key_space == "sparse" else keys


def deleted_of(scan):
    """Return the deleted keys of a scan, in pages of two at most."""
    return in_order(scan, [key for keys in scan.deleted(2) for key in keys.tolist()])


def joined(scan):
    """Return all batches of a scan with state as one, in order, and how long each was."""
    batches = list(scan)
    columns = [np.concatenate(column) for column in zip(*batches, strict=True)]
    if columns and scan.config.key_space == "sparse":
        order = np.argsort(columns[0])
        columns = [column[order] for column in columns]
    return columns or [np.empty(0, np.int64)], [len(keys) for keys, *_ in batches]


def expect_rows(scan, written):
    """Compare a scan with state with rows of the reference, by key."""
    keys = sorted(written)
    columns, counts = joined(scan)
    assert columns[0].tolist() == keys
    assert scan.rows == sum(counts) == len(keys)
    if keys:
        assert_same(columns[1], np.stack([written[key].weights for key in keys]))
        assert_same(columns[2], np.stack([written[key].state for key in keys]))


def written(twin, name="a"):
    """Return the rows of the reference by key; each write makes a new one."""
    return rows_by_key(twin.reference, twin.reference.table(name)._written)


@KINDS
@pytest.mark.parametrize("limits", [None, TINY], ids=["plain", "merging"])
def test_all_written_rows_with_their_state(open_twin, optimizer, limits):
    twin, rng = open_twin(limits=limits, cache_bytes=128 << 10), generator(1601)
    twin.create_table("other", **config(dim=7))
    twin.create_table("a", **config(dim=7, rows=2**40, optimizer=optimizer))
    for place in range(4):
        keys, grads = batch(rng, 300, dim=7)
        twin.on("a", "update", keys << 30 if place % 2 else keys, grads)
        twin.on("other", "update", *batch(rng, 100, dim=7))
        twin.on("a", "assign", [2**40 - 1, place], ones(2, 7))
        twin.settle()
    scan = twin.store.table("a").scan(with_state=True)
    assert (scan.command, scan.t) == (twin.store.command, 4)
    assert scan.config == twin.store.table("a").config
    expect_rows(scan, written(twin))


@pytest.mark.parametrize("batch_rows", [1, 7, 50, 1000])
@pytest.mark.needs("plain_keys")
def test_batches_are_of_the_length_asked_for(open_table, batch_rows):
    twin, table = open_table()
    twin.on("a", "update", np.arange(50) * 3, ones(50))
    columns, counts = joined(table.scan(batch_rows=batch_rows))
    assert columns[0].tolist() == list(range(0, 150, 3))
    assert max(counts) == min(batch_rows, 50)
    assert all(count == batch_rows for count in counts[:-1])


@pytest.mark.needs("plain_keys")
def test_pages_at_any_key_leave_the_batches_alone(open_table):
    twin, table = open_table()
    twin.on("a", "update", np.arange(50) * 3, ones(50))
    scan = table.scan(batch_rows=20)
    first = next(scan)[0]
    for low, rows in ((0, 1), (4, 3), (147, 9), (148, 1)):
        keys = np.arange(0, 150, 3)
        expected = keys[keys >= low][:rows]
        page = scan.page(low, rows)
        assert page[0].tolist() == expected.tolist()
        assert page[1].tobytes() == table.lookup(expected).tobytes()
    columns, _ = joined(scan)
    assert [*first, *columns[0]] == list(range(0, 150, 3))


def test_a_table_without_rows(open_table):
    _, table = open_table()
    assert list(table.scan()) == []


def test_a_scan_of_a_label_is_what_was_there_then(open_twin):
    twin, rng = open_twin(limits=TINY, cache_bytes=128 << 10), generator(1602)
    twin.create_table("a", **config(optimizer=OPTIMIZERS["adam"]))
    kept = {}
    for label in ("one", "two", "three"):
        twin.on("a", "update", *batch(rng, 400))
        grow(twin, "a", 1000 + 100 * len(kept))
        made = twin.checkpoint(label)
        kept[label] = written(twin), made.command, twin.reference.table("a").rows
        twin.settle()
    twin.on("a", "update", *batch(rng, 400))
    twin.reopen()
    table = twin.store.table("a")
    for place, (label, (rows, command, count)) in enumerate(kept.items()):
        scan = table.scan(label, with_state=True, batch_rows=64)
        assert (scan.command, scan.t) == (command, place + 1)
        assert scan.config.rows == count
        expect_rows(scan, rows)


def test_what_was_written_since_a_label(open_twin):
    """Also what was given the value it had, and nothing that was only read or evicted."""
    twin, rng = open_twin(limits=TINY, cache_bytes=128 << 10), generator(1603)
    twin.create_table("a", **config(optimizer=OPTIMIZERS["rowwise_adagrad"]))
    twin.on("a", "update", np.arange(1000), normal(rng, 1000, 4))
    twin.checkpoint("before")
    table = twin.store.table("a")
    table.lookup(np.arange(1000))
    assert table.scan(since="before").rows == 0
    twin.on("a", "update", [5, 9], np.zeros((2, 4), np.float32))
    twin.on("a", "assign", [7], table.lookup([7]))
    weights, state = table.read_rows([8])
    twin.on("a", "put_rows", [8], weights, state, 2)
    scan = table.scan(since="before", with_state=True)
    assert (scan.since_t, scan.t, scan.since_command) == (1, 4, 2)
    columns, _ = joined(scan)
    assert columns[0].tolist() == [5, 7, 8, 9]


def test_what_was_deleted_since_a_label(open_twin):
    """Rows that there were then, and that there are no more; no others."""
    twin = open_twin(limits=TINY, cache_bytes=128 << 10)
    twin.create_table("a", **config())
    twin.on("a", "update", np.arange(500), np.ones((500, 4), np.float32))
    twin.on("a", "delete", [1, 2])
    twin.checkpoint("before")
    table = twin.store.table("a")
    twin.on("a", "update", [1, 600], np.ones((2, 4), np.float32))
    twin.on("a", "delete", [1, 2, 3, 4, 5, 600, 700])
    twin.on("a", "assign", [4, 601], np.ones((2, 4), np.float32))
    for settled in (False, True):
        scan = table.scan(since="before")
        assert (scan.deleted_rows, deleted_of(scan)) == (2, [3, 5])
        assert joined(scan)[0][0].tolist() == [4, 601]
        whole = table.scan("before")
        assert (whole.deleted_rows, list(whole.deleted()), whole.rows) == (0, [], 498)
        if not settled:
            twin.settle()


@pytest.mark.parametrize("place", ["before", "between", "behind", "twice"])
def test_deleted_keys_come_at_any_place_and_the_later_end_closes(open_table, place):
    twin, table = open_table()
    twin.on("a", "update", np.arange(9), ones(9))
    twin.checkpoint("one")
    twin.on("a", "delete", [1, 5, 7])
    twin.on("a", "update", [0, 2, 4], ones(3))

    scan = table.scan(since="one", batch_rows=2)
    found = [deleted_of(scan)] if place in ("before", "twice") else []
    found += [deleted_of(scan)] if place == "twice" else []
    rows = next(scan)[0].tolist()
    found += [deleted_of(scan)] if place == "between" else []
    rows += [key for keys, _ in scan for key in keys.tolist()]
    found += [deleted_of(scan)] if place == "behind" else []
    assert in_order(scan, rows) == [0, 2, 4]
    assert {*map(tuple, found)} == {(1, 5, 7)}
    assert twin.store.stats()["scans"]["scans_open"] == 0
    with pytest.raises(SessionExpiredError, match="'a': expected an open scan"):
        deleted_of(scan)
    assert next(scan, None) is None


def test_deleted_keys_of_a_scan_that_was_left_keep_it_open(open_table):
    twin, table = open_table()
    twin.on("a", "update", np.arange(9), ones(9))
    twin.checkpoint("one")
    twin.on("a", "delete", [1, 5])
    scan = table.scan(since="one")
    assert list(scan) == []
    assert deleted_of(scan) == [1, 5]
    scan = table.scan(since="one")
    assert list(scan) == []
    assert twin.store.stats()["scans"]["scans_open"] == 1
    scan.close()
    assert list(scan) == []
    with pytest.raises(SessionExpiredError, match="'a': expected an open scan"):
        next(scan.deleted())


SEEDS = range(3)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_whole_and_what_was_since_are_a_later_whole(open_twin, seed):
    """Random commands, with evictions, folds, merges, restarts and crashes in between."""
    rng = generator(1610 + seed)
    optimizer = list(OPTIMIZERS.values())[seed % len(OPTIMIZERS)]
    twin = open_twin(limits=TINY, cache_bytes=128 << 10, checkpoints_keep=4)
    table = config(dim=9, optimizer=optimizer)
    twin.create_table("a", **table)
    state_dim = twin.store.table("a").config.state_dim
    kept = []

    def update():
        twin.on("a", "update", *batch(rng, int(rng.integers(1, 400)), dim=9))

    def assign():
        keys = rng.integers(0, 1000, 50)
        twin.on("a", "assign", keys, normal(rng, 50, 9))

    def put():
        keys = rng.permutation(1000)[:50]
        state = abs(normal(rng, 50, state_dim))
        twin.on("a", "put_rows", keys, normal(rng, 50, 9), state, int(rng.integers(3)))

    def delete():
        twin.on("a", "delete", rng.integers(0, 1000, 60))

    def grow_by_one():
        grow(twin, "a", twin.reference.table("a").rows + 1)

    def keep():
        kept.append(f"label-{len(kept)}")
        twin.checkpoint(kept[-1])

    def restore():
        if kept:
            twin.restore(kept[-1])

    verbs = [update, update, update, assign, put, delete, delete, grow_by_one, keep, keep]
    verbs += [twin.settle, twin.reopen, twin.crash, restore, lambda: twin.store.flush()]
    keep()
    for _ in range(40):
        rng.choice(np.array(verbs, object))()
        check_since(twin, kept[-4:])


def check_since(twin, labels):
    """Compare scans of a few labels, and since a few labels."""
    table = twin.store.table("a")
    now = written(twin)
    states = {
        label: rows_by_key(twin.reference, twin._kept[label].snapshot["a"][4]) for label in labels
    } | {None: now}
    for since in labels[-2:]:
        for label in (*labels[labels.index(since) :], None):
            scan = table.scan(label, since, with_state=True, batch_rows=100)
            changed = {k: r for k, r in states[label].items() if states[since].get(k) is not r}
            gone = np.concatenate([np.empty(0, np.int64), *scan.deleted(batch_keys=7)]).tolist()
            gone = in_order(scan, gone)
            assert (gone, len(set(gone))) == (sorted(gone), scan.deleted_rows)
            expect_rows(scan, changed)
            if label is None:  # it was committed for it
                twin.commits = Commit.of(twin.reference), twin.commits[1]
            left = {k: r for k, r in states[since].items() if k not in gone}
            assert len(left) == len(states[since]) - len(gone), "each had a row"
            assert {**left, **changed} == states[label]


def test_rows_are_of_one_command_while_others_write(backend):
    """The commands up to that of the scan, done again, give its rows to the bit."""
    store = backend.open_store(limits=TINY, cache_bytes=256 << 10)
    table = store.create_table("a", **config(optimizer=OPTIMIZERS["adagrad"]))
    done, stopping, lock = [], threading.Event(), threading.Lock()
    updates = threading.Semaphore(0)  # that may be done: so many a scan, on any machine

    def train(seed):
        rng = np.random.default_rng(seed)
        while updates.acquire() and not stopping.is_set():
            call = batch(rng, 200)
            with lock:  # so that it is known which was which
                done.append((table.update(*call).command, call))

    threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
    found = []
    for thread in threads:
        thread.start()
    try:
        while len(found) < 4:
            updates.release(16)
            scan = table.scan(with_state=True, batch_rows=150)
            if scan.rows:
                found.append((scan, *joined(scan)[0]))
    finally:
        stopping.set()
        updates.release(2)
        for thread in threads:
            thread.join()
    model = backend.reference()
    expected = model.create_table("a", **config(optimizer=OPTIMIZERS["adagrad"]))
    calls = dict(done)
    for scan, keys, weights, state in found:
        for command in range(model.command_number + 1, scan.command + 1):
            expected.update(*calls[command])
            assert model.command_number == command
        assert scan.t == expected.t
        assert keys.tolist() == sorted(expected.written)
        wanted = expected.read_rows(keys)
        assert_same(weights, wanted[0])
        assert_same(state, wanted[1])


@pytest.mark.needs("plain_keys")
def test_a_dropped_table_is_read_to_its_end(open_table):
    twin, table = open_table(limits=TINY, cache_bytes=128 << 10)
    twin.on("a", "update", np.arange(900), ones(900))
    scan = table.scan(batch_rows=100, with_state=True)
    before, first = written(twin), next(scan)
    twin.drop_table("a")
    twin.create_table("a", **config(dim=8))
    for _ in range(3):
        twin.on("a", "update", np.arange(900), ones(900, 8))
        twin.store.checkpoint(f"label-{twin.store.command}")
        twin.settle()
    assert first[0].tolist() == list(range(100))
    rest, _ = joined(scan)
    assert_same(
        np.concatenate([first[1], rest[1]]), np.stack([before[key].weights for key in range(900)])
    )
    with pytest.raises(TableNotFoundError, match="no longer exists"):
        table.scan()


def test_labels_that_cannot_be_read(open_table):
    twin, table = open_table(checkpoints_keep=2)
    twin.checkpoint("old")
    twin.on("a", "update", [1], ones(1))
    twin.checkpoint("middle")
    twin.create_table("later", **config())
    twin.checkpoint("new")
    store, later = twin.store, twin.store.table("later")
    with refused(store, CheckpointNotFoundError, "no checkpoint 'old'"):
        table.scan("old")
    with refused(store, CheckpointNotFoundError, "no checkpoint 'old'"):
        table.scan(since="old")
    with refused(store, InvalidArgumentError, "since", "before 'middle'", "'new', which is newer"):
        table.scan("middle", "new")
    with refused(store, TableNotFoundError, "'middle'", "'later'", "created later"):
        later.scan("middle")
    with refused(store, TableNotFoundError, "'middle'", "'later'"):
        later.scan(since="middle")
    with refused(store, InvalidArgumentError, "printable"):
        table.scan("a\nb")
    assert table.scan("middle", "middle").rows == 0
    assert later.scan("new").rows == 0


def test_another_table_of_the_name_is_not_what_was_kept(open_table):
    twin, _ = open_table()
    twin.checkpoint("one")
    twin.drop_table("a")
    table = twin.create_table("a", **config())
    with refused(twin.store, TableNotFoundError, "'one'", "created later"):
        table.scan(since="one")


def test_a_scan_that_was_closed_or_not_read_is_gone(open_table, monkeypatch):
    twin, table = open_table()
    twin.on("a", "update", np.arange(9), ones(9))
    with table.scan(batch_rows=2) as scan:
        next(scan)
        assert twin.store.stats()["scans"]["scans_open"] == 1
    assert next(scan, None) is None
    assert twin.store.stats()["scans"] == {"scans_open": 0, "scan_bytes": 0, "scanned_rows": 2}
    scan.close()
    scan = table.scan(batch_rows=2)
    monkeypatch.setattr(scans, "IDLE_S", -1.0)
    twin.on("a", "update", [1], ones(1))
    with pytest.raises(SessionExpiredError, match="'a': expected an open scan"):
        next(scan)
    scan.close()


def test_a_restore_ends_scans(open_table):
    twin, table = open_table()
    twin.on("a", "update", np.arange(9), ones(9))
    twin.checkpoint("one")
    scan = table.scan("one", batch_rows=2)
    next(scan)
    twin.restore("one")
    with pytest.raises(SessionExpiredError, match="restored"):
        next(scan)


@pytest.mark.needs("process")
def test_a_restore_ends_a_scan_that_is_being_opened(open_table, monkeypatch):
    """Also another opening by its name, which is then the newer one."""
    twin, table = open_table()
    twin.on("a", "update", np.arange(9), ones(9))
    twin.checkpoint("one")
    twin.on("a", "update", np.arange(20), ones(20))
    prepare = scans.Snapshot.prepare

    def restored(snapshot, between, reserve):
        monkeypatch.setattr(scans.Snapshot, "prepare", prepare)
        twin.restore("one")
        return prepare(snapshot, between, reserve)

    monkeypatch.setattr(scans.Snapshot, "prepare", restored)
    with pytest.raises(SessionExpiredError, match="while it was opened"):
        table.scan()
    engine, name = engine_of(twin.store), "a" * 32

    def opened_again(snapshot, between, reserve):
        monkeypatch.setattr(scans.Snapshot, "prepare", prepare)
        engine.execute(commands.OpenScan(name, "a", None))
        return prepare(snapshot, between, reserve)

    monkeypatch.setattr(scans.Snapshot, "prepare", opened_again)
    with pytest.raises(SessionExpiredError, match="while it was opened"):
        engine.execute(commands.OpenScan(name, "a", None))
    engine.execute(commands.CloseScan(name, "a"))


def test_a_store_that_nobody_may_write(open_table):
    twin, table = open_table(limits=TINY)
    twin.on("a", "update", np.arange(100), ones(100))
    twin.checkpoint("one")
    twin.on("a", "update", np.arange(50), ones(50))
    twin.reopen(read_only=True)
    table = twin.store.table("a")
    expect_rows(table.scan(with_state=True), written(twin))
    assert table.scan(since="one").rows == 50


def test_a_page_has_a_bound(open_table, monkeypatch):
    twin, table = open_table()
    twin.on("a", "update", np.arange(1000), ones(1000))
    limits = engine_of(twin.store).tables.limits
    scan = table.scan(batch_rows=1000)
    monkeypatch.setitem(limits.__dict__, "call_bytes_max", 1000 * 24 - 1)
    with pytest.raises(InvalidArgumentError, match=r"at most 23999 bytes \(limits"):
        next(scan)
    with pytest.raises(InvalidArgumentError, match="rows"):
        next(table.scan(batch_rows=-1))


@pytest.mark.needs("one_store")
@pytest.mark.needs("plain_keys")
def test_a_damaged_record_is_named(open_table, backend):
    twin, _ = open_table(a=config(dim=16))
    twin.on("a", "update", np.arange(100), ones(100, 16))
    twin.checkpoint("one")
    twin.store.close()
    (file,) = backend.path(twin.name).glob("log/*.log")
    content = file.read_bytes()
    key = damage_first_row(file)
    store = backend.open_store(twin.name)
    with pytest.raises(CorruptTableError, match=f"'a': the stored record of key {key} fails"):
        list(store.table("a").scan())
    store.close()
    file.write_bytes(content)
    twin._open_again()
