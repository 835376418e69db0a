"""Frames that no client sends through the socket of shared memory, and segments that change.

It costs the connection that sent it, at most; and of segments nothing is believed.
"""

import math
import socket
import struct
import sys
import threading
from array import array

import numpy as np
import pytest

from embstore import commands as c
from embstore.handles.store import Store
from embstore_proto import shared_memory as frames
from embstore_proto.shared_memory import INLINE_BYTES, Kind
from embstore_proto.verbs import VERBS
from embstore_server.transports.shared_memory.connection import SharedIncoming
from tests.service.faults.ledger import Ledger, gradients
from tests.service.faults.served import PATIENCE_S, Served
from tests.service.faults.sharing import (
    DIM,
    EndedError,
    Owned,
    RawSharer,
    await_owned,
    keys,
    lookup,
    make_wide,
    update,
)
from tests.serving import patient

SEED = 20_261_301
NOISES = 40
FLIPS, SOAKED = 300, 100_000
SECRET = np.float32(-7.03125e11)
"""In every row of another's table. As four bytes it is no number, key or gradient of a flipper."""
COUNT = 2500
"""Keys of a call: too large for the socket, as its rows are."""
SEGMENT_BYTES_OF_CALLS = COUNT * (8 + 4 * DIM) * 2


@pytest.fixture
def shared(served: Served) -> Served:
    """A server with a table of wide rows, and one that is another's."""
    served.on_engine(make_wide)
    served.on_engine(lambda store: make_wide(store, "secret", float(SECRET)))
    return served


@pytest.fixture
def ledger(shared: Served) -> Ledger:
    return Ledger(first_command=shared.store.command + 1)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    sys.stdout.write(f"seed {SEED}\n")
    return np.random.default_rng([SEED, *request.node.name.encode()])


def assert_serves(served: Served, ledger: Ledger) -> None:
    """Check that a client is served, and that its updates are all that has been done."""
    with patient(f"unix:{served.socket}") as store:
        n = len(ledger.acknowledged)
        ledger.acknowledged[n] = store.update(gradients(n)).command
        ledger.check(store)
        assert store.lookup({"wide": keys(COUNT)})["wide"].shape == (COUNT, DIM)


# Frames


def refused(served: Served, sent: bytes, segment_bytes: int = 0) -> str:
    """Send bytes and no more; return the error that they are answered by, "" for none."""
    with RawSharer(served.socket) as sharer:
        if segment_bytes:
            sharer.ask_for(segment_bytes)
        try:
            sharer.say(sent)
            sharer.socket.shutdown(socket.SHUT_WR)
            said = sharer.next()
        except (EndedError, ConnectionError):
            return ""
        return said.refusal.name


def framed(kind: int, body: bytes, small: int = 0, size: int | None = None) -> bytes:
    return struct.pack("<IBB", len(body) if size is None else size, kind, small) + body


def called(
    *,
    verb: bytes = b"Lookup",
    seconds: float = 9.0,
    header: bytes = b"",
    header_bytes: int | None = None,
    offset: int = 0,
    size: int = 64,
    name_bytes: int | None = None,
    inline: bytes = b"",
) -> bytes:
    """Return a call whose numbers say what they like."""
    fixed = struct.pack(
        "<dIQQ", seconds, len(header) if header_bytes is None else header_bytes, offset, size
    )
    small = len(verb) if name_bytes is None else name_bytes
    return framed(Kind.CALL, fixed + verb + header + inline, small)


def lookup_header() -> bytes:
    return VERBS["Lookup"].outgoing(lookup(COUNT)).serialised(None)


SEGMENT_BYTES, INLINE = 1 << 16, 2**64 - 1
FRAMES = {
    "nothing": b"",
    "half a head": b"\x01\0",
    "no body": framed(Kind.CALL, b"", size=100),
    "half a body": framed(Kind.CALL, b"abc", size=100),
    "kind 0": framed(0, b"abc"),
    "kind 255": framed(255, b"abc"),
    "a greeting": frames.greeting("process"),
    "a result": b"".join(map(bytes, frames.answer(True, b"x", b"y", None))),
    "an error": frames.refusal(1, "X", "x", is_final=True),
    "an empty call": framed(Kind.CALL, b""),
    "a short call": framed(Kind.CALL, bytes(27)),
    "a huge frame": framed(Kind.CALL, b"x", size=2**32 - 1),
    "a frame above the most": framed(Kind.CALL, b"x", size=(1 << 20) + INLINE_BYTES + 1025),
    "a segment of no bytes": framed(Kind.SEGMENT, b""),
    "a segment of too many bytes": framed(Kind.SEGMENT, bytes(9)),
    "a huge segment": frames.segment(2**64 - 1),
    "a segment of half of that": frames.segment(2**63),
    "an unknown verb": called(verb=b"Upsert", offset=INLINE, size=0),
    "a verb of no letters": called(verb=b"\xff\x00\xfe", offset=INLINE, size=0),
    "a verb that ends too late": called(name_bytes=255),
    "a header that ends too late": called(header_bytes=2**32 - 1),
    "a header that ends too early": called(header=b"abc", header_bytes=2),
    "seconds that are no number": called(seconds=math.nan),
    "seconds below 0": called(seconds=-1.0),
    "no seconds": called(seconds=0.0),
    "endlessly few seconds": called(seconds=-math.inf),
    "an inline size that lies": called(offset=INLINE, size=100, inline=b"abc"),
    "a huge inline size": called(offset=INLINE, size=2**64 - 1, inline=b"abc"),
    "no segment": called(header=lookup_header()),
    "a control verb with a segment": called(verb=b"ListTables"),
    "a header of noise": called(header=b"\xff" * 50, offset=INLINE, size=0),
}
ENDED = ("nothing", "half a head", "no body", "half a body")
"""Of what may yet be finished, nothing is said."""


@pytest.mark.parametrize("sent", FRAMES.values(), ids=FRAMES.keys())
def test_a_frame_of_garbage_is_refused_and_leaves_nothing(sent, shared, ledger):
    before = Owned.of(shared)
    found = refused(shared, sent)
    assert found == ("" if sent in [FRAMES[name] for name in ENDED] else "InvalidArgumentError")
    await_owned(shared, before)
    assert_serves(shared, ledger)


PLACES = [
    (0, SEGMENT_BYTES + 1),
    (SEGMENT_BYTES, 64),
    (SEGMENT_BYTES - 64, 128),
    (1, 64),
    (63, 1),
    (SEGMENT_BYTES - 1, 1),
    (2**63, 0),
    (2**63 - 64, 64),
    (2**63, 2**63),
    (2**64 - 64, 64),
    (2**64 - 64, 128),
    (2**64 - 2, 2**64 - 1),
    (0, 2**64 - 1),
    (0, 2**63),
    (64, 2**64 - 64),
]


@pytest.mark.parametrize(("offset", "size"), PLACES)
def test_a_payload_outside_the_segment_is_refused(offset, size, shared):
    before = Owned.of(shared)
    sent = called(header=lookup_header(), offset=offset, size=size)
    assert refused(shared, sent, SEGMENT_BYTES) == "InvalidArgumentError"
    await_owned(shared, before)


def test_a_payload_of_a_reply_and_a_request_may_fill_the_segment_to_its_end(shared):
    with RawSharer(shared.socket) as sharer:
        sharer.ask_for(SEGMENT_BYTES)
        header = VERBS["Lookup"].outgoing(lookup(SEGMENT_BYTES // 8)).serialised(None)
        sharer.segment[:] = keys(SEGMENT_BYTES // 8).view(np.uint8)
        sharer.say(called(header=header, offset=0, size=SEGMENT_BYTES))
        assert sharer.answer().kind == Kind.RESULT
        assert len(sharer.segment) >= 4 * DIM * SEGMENT_BYTES // 8


@pytest.mark.parametrize("size", [0, 1, SEGMENT_BYTES])
def test_a_segment_is_never_smaller_than_it_was_asked_for(size, shared):
    before = Owned.of(shared)
    with RawSharer(shared.socket) as sharer:
        assert sharer.ask_for(size).kind == Kind.SEGMENT
        assert len(sharer.segment) >= size
        assert not sharer.segment.any()
    await_owned(shared, before)


def test_seconds_without_end_are_those_of_the_server(shared):
    with RawSharer(shared.socket) as sharer:
        sharer.begin(lookup(10), math.inf)
        assert sharer.answer().kind == Kind.RESULT


def test_noise_is_refused_and_leaves_nothing(shared, ledger, rng):
    before = Owned.of(shared)
    for n in range(NOISES):
        noise = rng.integers(0, 256, int(rng.integers(1, 3000)), np.uint8).tobytes()
        kind = int(rng.integers(0, 9))
        refused(shared, noise if n % 2 else framed(kind, noise, int(noise[0])), SEGMENT_BYTES)
    await_owned(shared, before)
    assert_serves(shared, ledger)


def test_calls_cut_off_at_any_byte_leave_nothing(shared, ledger):
    before = Owned.of(shared)
    whole = b"".join(map(bytes, frames.call("Lookup", 9.0, lookup_header(), bytes(64), None)))
    for end in range(len(whole)):
        assert not refused(shared, whole[:end])
    await_owned(shared, before)
    assert_serves(shared, ledger)


def test_a_hello_of_garbage_makes_nobody_of_it(shared):
    with RawSharer(shared.socket) as sharer:
        for said in (b"", b"\xff\0\n\n\n", b"\n" * 5000, b"x" * 60_000):
            sharer.say(framed(Kind.HELLO, said))
            assert sharer.execute(lookup(10)).kind == Kind.RESULT


def test_frames_before_an_answer_are_bounded(shared):
    """Who sends call after call, and waits for none, is ended."""
    before = Owned.of(shared)
    with shared.held(), RawSharer(shared.socket) as sharer:
        sharer.begin(lookup(10))
        with pytest.raises((EndedError, ConnectionError)):
            while True:
                sharer.say(bytes(1 << 20))
    await_owned(shared, before)


def test_descriptors_that_a_client_passes_are_not_kept(shared):
    before = Owned.of(shared)
    with RawSharer(shared.socket) as sharer:
        passed = array("i", [sharer.socket.fileno()] * 100)
        for _ in range(20):
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)]
            sharer.socket.sendmsg([frames.hello("", "x")], rights)
        assert sharer.execute(lookup(10)).kind == Kind.RESULT
        assert Owned.of(shared).descriptors == before.descriptors + 2  # its own, and the server's
    await_owned(shared, before)


# Segments


class Flipper:
    """A client that changes its segment while its calls run: bytes here and there, at random."""

    def __init__(self, served: Served, rng: np.random.Generator) -> None:
        self.sharer = RawSharer(served.socket)
        self.sharer.ask_for(SEGMENT_BYTES_OF_CALLS)
        self._rng = rng
        self.flips = 0
        self.answers: dict[str, int] = {}

    def flip(self) -> None:
        """Change some bytes."""
        places = self._rng.integers(0, len(self.sharer.segment), 16)
        if self._rng.random() < 0.5:
            places %= 8 * COUNT  # where keys are
        self.sharer.segment[places] ^= self._rng.integers(1, 256, 16, np.uint8)
        self.flips += 1

    def call(self, command: c.Command[object]) -> bool:
        """Have a command run under flips; say if it was done."""
        sharer = self.sharer
        sharer.begin(command)
        self.flip()
        while not sharer.has_answer:
            self.flip()
        said = sharer.answer()
        name = said.refusal.name if said.kind == Kind.ERROR else "OK"
        self.answers[name] = self.answers.get(name, 0) + 1
        assert name in ("OK", "InvalidArgumentError"), said.refusal
        assert SECRET not in sharer.segment.view(np.float32)
        if not len(sharer.segment):
            sharer.ask_for(SEGMENT_BYTES_OF_CALLS)
        return name == "OK"


class FlippedSteps:
    """Steps of a session whose member is a flipper."""

    def __init__(self, flipper: Flipper) -> None:
        self._flipper = flipper
        self._open()

    def _open(self) -> None:
        sharer = self._flipper.sharer
        self._step = sharer.result(c.OpenSession("flipped", ("steps",))).last_step
        self._member = sharer.result(c.JoinSession("flipped", 0)).member

    def step(self) -> None:
        """Do the next step, or what can be done of it."""
        flipper, member, step = self._flipper, self._member, self._step + 1
        announced = c.StepKeys(step, (c.StepTable("steps", keys(COUNT)),))
        if not flipper.call(c.Announce(member, (announced,))):
            return
        self._step = step
        flipper.call(c.LookupStep(member, step, early=False))
        gradients = np.zeros((COUNT, DIM), np.float32)
        if not flipper.call(c.UpdateStep(member, step, (c.StepGradients("steps", gradients),))):
            assert flipper.sharer.execute(c.SkipStep(member, step)).kind == Kind.RESULT


def test_bytes_that_change_during_calls_harm_nobody_else(shared, rng, pytestconfig):
    rounds = FLIPS if pytestconfig.getoption("soak") == 1 else SOAKED
    shared.on_engine(lambda store: make_wide(store, "steps"))

    def digest(store: Store) -> str:
        return store.table("secret").digest()

    before, content = Owned.of(shared), shared.on_engine(digest)
    flipper = Flipper(shared, rng)
    steps = FlippedSteps(flipper)
    with patient(f"unix:{shared.socket}") as good:
        while flipper.flips < rounds or len(flipper.answers) < 2:
            flipper.call(lookup(COUNT))
            flipper.call(update(COUNT, value=0.5))
            steps.step()
            assert (good.lookup({"secret": keys(COUNT)})["secret"] == SECRET).all()
        good.table("marks").update([1], np.ones((1, 1), np.float32))
        assert good.table("marks").lookup([1])[0, 0] == -1.0
    sys.stdout.write(f"{flipper.flips} flips: {flipper.answers}\n")
    flipper.sharer.close()
    await_owned(shared, before)
    assert shared.on_engine(digest) == content
    shared.on_engine(lambda store: store.check_integrity())


def test_rows_of_a_call_that_was_given_up_go_to_no_later_segment(shared, monkeypatch):
    """Else they would be among the gradients that the client writes there meanwhile."""
    reached, free, lend = threading.Event(), threading.Event(), SharedIncoming._lend

    def late(call: SharedIncoming, size: int) -> memoryview:
        reached.set()
        assert free.wait(PATIENCE_S)
        return lend(call, size)

    monkeypatch.setattr(SharedIncoming, "_lend", late)
    monkeypatch.setattr(shared.service, "look_up_at_once", lambda *_: None)  # on the engine thread
    with RawSharer(shared.socket) as sharer:
        while not reached.is_set():  # a deadline may pass before
            sharer.ask_for(SEGMENT_BYTES_OF_CALLS)
            sharer.begin(lookup(COUNT, "secret"), 0.05)
            assert sharer.answer().refusal.name == "DeadlineError"
        sharer.ask_for(SEGMENT_BYTES_OF_CALLS)
        free.set()
        assert shared.on_engine(lambda store: store.command)  # after it
        assert not sharer.segment.any()
        assert sharer.execute(lookup(COUNT, "secret")).kind == Kind.RESULT
