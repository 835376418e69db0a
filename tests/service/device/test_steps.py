"""Steps of sessions whose rows and gradients are in memory that a server's GPU shares: those of the
same steps with arrays of the host, to the bit, and none of them on the host."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import embstore
from embstore.arithmetic import unique
from embstore.handles.sessions import BagGradients, SomeGradients, StepBags
from embstore_client.shared_memory import RESULTS_MAX
from tests.conformance.sessions.training import await_planned
from tests.copies import copy_of_open
from tests.kernels.emulation.peer import LentArray
from tests.service.device.samples import (
    COUNT,
    DIM,
    PATIENCE_S,
    ROWS,
    SEGMENT_BYTES,
    WIDE,
    Lent,
    assert_same,
    rng,
    wire_of,
)
from tests.service.device.test_same_bits import FEW_ROWS
from tests.service.device.travelling import Travelled
from tests.service.faults.losing import needs_compiler
from tests.service.faults.served import until
from tests.serving import patient

pytestmark = needs_compiler

BAGS = 40
PAIRS = ("narrow", "narrow-2"), ("wide", "wide-2")
DIMS = {"narrow": DIM, "narrow-2": DIM, "wide": WIDE, "wide-2": WIDE}


class Member:
    """A rank of a session of some tables."""

    def __init__(self, store: Any, name: str, tables: Any, *, rank: int = 0, ranks: int = 1):
        self.sessions = store.sessions
        self.sessions.open(name, list(tables), world_size=ranks)
        self.name = self.sessions.join(name, rank).member

    def announce(self, step: int, keys: Mapping[str, Any]) -> None:
        """Announce the keys of a step."""
        self.sessions.announce(self.name, {step: dict(keys)})


def drawn(random: np.random.Generator) -> tuple[Any, Any, Any, StepBags]:
    """Return keys that repeat, each once, which each occurrence has, and bags of them."""
    once, inverse = unique(np.minimum(random.zipf(1.3, COUNT), ROWS) - 1)
    offsets = np.array([0, *np.sort(random.integers(0, COUNT, BAGS - 1)), COUNT])
    weights = random.random(COUNT).astype(np.float32)
    mode = ("sum", "mean")[int(random.integers(2))]
    bags = StepBags(inverse, offsets, mode, weights if mode == "sum" else None)  # type: ignore[arg-type]
    return once, inverse, StepBags(inverse), bags


def normal(random: np.random.Generator, *shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "settings", [{}, {"cache_bytes": FEW_ROWS}, {"durability": "commands"}], indirect=True
)
def test_steps_give_the_bits_of_arrays_of_the_host(server, trainer, ranks, settings, tmp_path):
    """Occurrences of one table, and bags of another; gradients of them, which the GPU sums."""
    random, store = rng(), trainer.store
    host = [Member(store, "h", ("narrow", "wide"), rank=r, ranks=ranks) for r in range(ranks)]
    device = [Member(store, "d", ("narrow-2", "wide-2"), rank=r, ranks=ranks) for r in range(ranks)]
    for step in range(1, 5):
        sent = []
        shares = [(drawn(random), drawn(random)) for _ in range(ranks)]
        for own, theirs, (narrow, wide) in zip(host, device, shares, strict=True):
            own.announce(step, {"narrow": narrow[0], "wide": wide[0]})
            theirs.announce(step, {"narrow-2": narrow[0], "wide-2": wide[0]})
        with ThreadPoolExecutor(2 * ranks) as pool:
            for own, theirs, (narrow, wide) in zip(host, device, shares, strict=True):
                look_up = own.sessions.lookup_step_pooled
                expected = look_up(own.name, step, {"narrow": narrow[2], "wide": wide[3]})
                found = look_up(
                    theirs.name, step, {"narrow-2": narrow[2], "wide-2": wide[3]}, on_device=True
                )
                assert all(isinstance(rows, LentArray) for rows in found.values())
                for name, rows in expected.items():
                    assert np.array_equal(found[f"{name}-2"].content(), rows)
                of_keys, of_bags = normal(random, COUNT, DIM), normal(random, BAGS, WIDE)
                given: Any = {
                    "narrow": BagGradients(narrow[2], of_keys),
                    "wide": BagGradients(wide[3], of_bags),
                }
                there: Any = {
                    "narrow-2": BagGradients(narrow[2], trainer.array(of_keys)),
                    "wide-2": BagGradients(wide[3], trainer.array(of_bags)),
                }
                update = own.sessions.update_step
                sent.append(pool.submit(update, own.name, step, given))
                sent.append(pool.submit(update, theirs.name, step, there))
                del found, rows
        assert [done.result().skipped for done in sent] == [False] * 2 * ranks
    assert_same(server, *PAIRS)
    if "durability" in settings:
        digests = [store.table(name).digest() for name in DIMS]
        server.on_engine(lambda _: copy_of_open(tmp_path / "store", tmp_path / "copy"))
        with embstore.open(
            tmp_path / "copy", device="cpu", cache_bytes=1 << 20, threads=1
        ) as again:
            assert [again.table(name).digest() for name in DIMS] == digests


def test_distinct_keys_and_gradients_of_some(server, trainer):
    """Rows in announced order; rows of steps that one after the other has keys of."""
    random, store = rng(), trainer.store
    host, device = Member(store, "h", ("wide",)), Member(store, "d", ("wide-2",))
    steps = range(1, 5)
    keys = {step: random.permutation(ROWS)[:100] for step in steps}
    for step in steps:
        host.announce(step, {"wide": keys[step]})
        device.announce(step, {"wide-2": keys[step]})
    for step in steps:
        expected = host.sessions.lookup_step(host.name, step)["wide"]
        found = device.sessions.lookup_step(device.name, step, on_device=True)["wide-2"]
        assert np.array_equal(found.content(), expected)
        del found
        chosen, grads = np.arange(0, 100, 3), normal(random, 34, WIDE)
        given = SomeGradients(chosen, grads)
        host.sessions.update_step(host.name, step, {"wide": given})
        given = SomeGradients(chosen, trainer.array(grads))
        device.sessions.update_step(device.name, step, {"wide-2": given})
    assert_same(server, ("wide", "wide-2"))


def test_the_network_and_the_host_see_no_row_and_no_gradient(server, trainer, gpu, monkeypatch):
    """What travels is which keys occur where: a row is of 256 bytes."""
    device, travelled = Member(trainer.store, "d", ("wide",)), Travelled(monkeypatch)
    trainer.table("wide").lookup(np.arange(ROWS))  # resident
    of_host, copied = server.traffic.segment_bytes, wire_of(trainer).copies.bytes
    moved, step = [], 0
    for count in (64, 64, ROWS, ROWS):
        step += 1
        inverse = np.arange(count, dtype=np.int32)[::-1].copy()
        device.announce(step, {"wide": np.arange(count)})
        await_planned(trainer.store, step, "d")  # which uploads the keys
        runtimes = server.runtime, gpu.runtime
        grads = trainer.array(np.ones((count, WIDE), np.float32))
        before = [n for r in runtimes for n in (r.uploaded_bytes, r.downloaded_bytes)]
        before.append(travelled.of_this_thread[1])
        bags = {"wide": StepBags(inverse)}
        rows = device.sessions.lookup_step_pooled(device.name, step, bags, on_device=True)
        rows |= device.sessions.lookup_step(device.name, step, on_device=True)
        given = {"wide": BagGradients(bags["wide"], grads)}
        device.sessions.update_step(device.name, step, given)
        after = [n for r in runtimes for n in (r.uploaded_bytes, r.downloaded_bytes)]
        after.append(travelled.of_this_thread[1])
        moved.append([a - b for a, b in zip(after, before, strict=True)])
        del rows
    more = np.array(moved[3]) - np.array(moved[1])
    assert (more <= 16 * (ROWS - 64)).all(), moved
    assert server.traffic.segment_bytes == of_host
    assert wire_of(trainer).copies.bytes == copied


def test_what_is_queued_on_rows_is_done_before_they_are_written_over(server, trainer, gpu):
    """A trainer that only reads has no gradients whose stream would be waited for."""
    device, keys = Member(trainer.store, "d", ("wide",)), np.arange(100)
    expected, reads = [], []
    for step in range(1, 5):
        device.announce(step, {"wide": keys + step})
        expected.append(trainer.table("wide").lookup(keys + step).copy())
        rows = device.sessions.lookup_step(device.name, step, on_device=True)["wide"]
        reads.append(rows.begin_read())
        del rows
        device.sessions.release_step(device.name, step)
    assert gpu.opened == 1
    for read, rows in zip(reads, expected, strict=True):
        assert np.array_equal(read(), rows)


def test_rows_that_are_kept_stay_as_they_are_and_many_are_copied(server, trainer):
    random, device = rng(), Member(trainer.store, "d", ("wide",))
    kept, expected, keys = [], [], np.arange(100)
    for step in range(1, RESULTS_MAX + 4):
        device.announce(step, {"wide": keys})
        expected.append(trainer.table("wide").lookup(keys))
        kept.append(device.sessions.lookup_step(device.name, step, on_device=True)["wide"])
        grads = trainer.array(normal(random, 100, WIDE))
        device.sessions.update_step(device.name, step, {"wide": grads})
    assert Lent.of(server)[0] <= (RESULTS_MAX + 1) * SEGMENT_BYTES
    for rows, as_it_was in zip(kept, expected, strict=True):
        assert np.array_equal(rows.content(), as_it_was)


def test_rows_of_a_step_that_another_client_has_announced_have_room_made_for_them(
    server, trainer, gpu
):
    inverse = rng().integers(0, ROWS, 20_000).astype(np.int32)
    with patient(f"unix:{server.socket}") as other:
        device = Member(other, "d", ("wide",))
        device.announce(1, {"wide": np.arange(ROWS)})
    expected = trainer.table("wide").lookup(inverse.astype(np.int64))
    look_up, bags = trainer.store.sessions.lookup_step_pooled, {"wide": StepBags(inverse)}
    for _ in range(2):
        rows = look_up(device.name, 1, bags, on_device=True)["wide"]
        assert np.array_equal(rows.content(), expected)
        del rows
    assert gpu.opened == 2  # the first, and the one that has room
    until(lambda: len(set(Lent.of(server))) == 1, PATIENCE_S)


# Loops of trainers


def trained(store: Any, tables: Any, array: Any, content: Any, **session: Any) -> None:
    """Train some steps, of which each looks up in another way."""
    narrow, wide = tables
    random = rng()
    batches = [{narrow: drawn_keys(random), wide: drawn_keys(random)} for _ in range(6)]
    offsets = np.array([0, *np.sort(random.integers(0, COUNT, BAGS - 1)), COUNT])
    with store.session(tables, resume=False, **session) as run:
        keys = array if session.get("rows", "auto") == "auto" else np.asarray
        for step in run.steps(batches, lambda batch: {t: keys(k) for t, k in batch.items()}):
            match step.number % 3:
                case 0:
                    rows = {name: content(of) for name, of in step.lookup().items()}
                    given = {t: array(rows[t] * np.float32(0.1)) for t in tables}
                    step.update(given)
                case 1:
                    found = step.lookup_unique()
                    given = {
                        t: array(content(of) * np.float32(0.1)) for t, (of, _) in found.items()
                    }
                    step.update_unique(given)
                    del found
                case 2:
                    found = step.lookup_pooled({narrow: None, wide: offsets}, "mean")
                    step.update_pooled(
                        {t: array(content(of) * np.float32(0.1)) for t, of in found.items()}
                    )
                    del found


def drawn_keys(random: np.random.Generator) -> Any:
    return np.minimum(random.zipf(1.3, COUNT), ROWS) - 1


@pytest.mark.parametrize("rows", ["device", "auto"])
def test_a_loop_has_all_of_a_step_on_the_device(server, trainer, rows):
    def content(found: Any) -> Any:
        assert isinstance(found, LentArray)
        return found.content()

    trained(trainer.store, ["narrow", "wide"], np.asarray, np.asarray, rows="host")
    trained(trainer.store, ["narrow-2", "wide-2"], trainer.array, content, rows=rows)
    assert_same(server, *PAIRS)


def test_a_loop_has_host_and_device_steps_by_turns(server, trainer):
    """Where their keys are. Rows of the next step are sent for early if they come to the host."""
    random, seen = rng(), []
    batches = [drawn_keys(random) for _ in range(6)]
    trained_by = {"wide": lambda n: False, "wide-2": lambda n: n % 3 != 0}
    for name, is_there in trained_by.items():
        with trainer.store.session([name]) as run:
            numbered = list(enumerate(batches))
            for step in run.steps(
                numbered,
                lambda b, name=name, is_there=is_there: {
                    name: trainer.array(b[1]) if is_there(b[0]) else b[1]
                },
            ):
                rows = step.lookup()[name]
                seen.append(isinstance(rows, LentArray))
                found = rows.content() if seen[-1] else rows
                step.update({name: found * np.float32(0.5)})
                del rows
    assert seen == [False] * 6 + [False, True, True] * 2
    assert_same(server, ("wide", "wide-2"))
