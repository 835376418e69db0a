"""The command log: commands that write, on the disk before they are acknowledged.

A store is a pure function of its commands (docs/contract.md, rule 5). So what no commit has yet
need not be lost in a crash, if the commands are kept: opening the store executes them again
(`embstore.engine.recovery`), through the same executor, and comes to the same bits. The levels of
**durability** say what an acknowledgement means:

    checkpoint   what the last commit has survives a crash; nothing is logged
    interval     a command is acknowledged at once; it is written soon, and synced every so often: a
                 crash loses what came since
    commands     a command is acknowledged when it is on the disk

A command is appended as it is counted, inside its call, so the log's order is the store's; a thread
writes and syncs it, while the next command is applied already. Only the acknowledgement waits.

What is logged of an update is what decides it: each key once, with the scaled sum of its gradients
(rules 2 and 4), as the engine has just computed them, and a scale of 1. Of a Zipf batch that is a
third of the bytes; and they are the log's own, so that nobody need keep an array until it was read.

**Answers.** A client may send a command again across a crash, so who sent it is in the log, and the
answers that a client may still ask for are kept here. A commit makes the logged commands
superfluous, but not these answers: it begins a segment whose first record has them. They belong to
a **life**, which ends where they are lost: it is what clients know as the server's instance.

**Labels** are in the catalogue; the log says of them what standbys have to know: which one was
made, and, when one was dropped or protected, all that are kept since. The latter is said again
whenever the log is opened: a crash may have come between the catalogue and the record.

What is logged of a look-ahead step is what it did: an update of the tables' keys, and the session's
new place.

A record's body is a JSON object, its length before it (4 bytes), padded to a multiple of 64, and
then the message that the wire has for the command.
"""

import json
import struct
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from embstore.commands import Command
from embstore.durability import Durability
from embstore.results import Checkpoint, Context, Place
from embstore.storage import command_records
from embstore.storage.catalogue import Catalogue
from embstore.storage.command_files import CommandFiles
from embstore.storage.command_records import (
    ANSWERS,
    CHECKPOINT,
    COMMAND,
    FORGOTTEN,
    LABELS,
    Part,
    Record,
    RecordReader,
)
from embstore.storage.storage import Storage
from embstore.tables.owners import Ages, owner_of

CALLS_MAX = 1024
"""Answers that are kept of one client."""
CLIENTS_MAX = 4096
"""Clients of which answers are kept; `tables.owners` says of which ones."""
ANSWERS_MAX = 16_384
"""Answers that are kept of all clients: each commit writes them."""
_UNKNOWN = Context("", 0, 0)
_LENGTH = struct.Struct("<I")
_ALIGNMENT = 64
_FORGOTTEN_BYTES_MAX = 8192
"""A name has at most 255 characters, each of which JSON may write in twelve."""


class Origin(Protocol):
    """Who sent a command (`embstore_proto.envelope.Origin`)."""

    @property
    def client_id(self) -> str:
        """Of whom."""

    @property
    def sequence(self) -> int:
        """The number of the call."""

    @property
    def finished_below(self) -> int:
        """The client has the answers of all sequences below."""


class Codec(Protocol):
    """Commands and their results as bytes: as the wire has them (`embstore_proto.records`)."""

    def parts(
        self, command: Command[Any], origin: Any, on_host: Callable[[Any], Any]
    ) -> list[Part]:
        """Return a command as a message, in parts; `on_host` brings an array from a device."""

    def command(self, verb: str, message: bytes) -> tuple[Command[Any], Any]:
        """Return the command of a message, and its origin, or None."""

    def result_bytes(self, verb: str, result: Any, context: Context) -> bytes:
        """Return a result as a reply."""

    def result(self, verb: str, reply: bytes) -> tuple[Any, Context]:
        """Return the result of a reply, and the state that it is of."""


BEGINS_ANEW = -1
"""The step of a session whose place is forgotten."""


class Sent(NamedTuple):
    """An origin that was read."""

    client_id: str
    sequence: int
    finished_below: int


class SessionPlace(NamedTuple):
    """Where a session is after a step."""

    session: str
    place: Place


class Answer(NamedTuple):
    """What a command was answered; `result` None: that was lost in a crash, but it was done."""

    verb: str
    result: Any
    context: Context


class Remembered:
    """What is known of one client's calls."""

    def __init__(self, floor: int = 1) -> None:
        self.calls: dict[int, Answer] = {}
        """By sequence."""
        self.floor = floor
        """Every lower sequence has been forgotten."""


class Answers:
    """The answers that clients may still ask for, and of whom some are forgotten."""

    def __init__(self) -> None:
        self.clients: OrderedDict[str, Remembered] = OrderedDict()
        self.forgotten: set[str] = set()
        """Owners: a client of theirs that is not here may have had calls."""
        self._ages = Ages()
        self._counts: Counter[str] = Counter()  # of answers, by owner

    def add(self, origin: Origin, answer: Answer) -> None:
        """Keep an answer; forget those that its client has, and the clients that are too many."""
        client = self.clients.setdefault(origin.client_id, Remembered())
        self.clients.move_to_end(origin.client_id)
        self._ages.renew(origin.client_id)
        lowest = max(origin.finished_below, origin.sequence - CALLS_MAX + 1)
        client.floor = max(client.floor, lowest)
        before = len(client.calls)
        for old in [sequence for sequence in client.calls if sequence < client.floor]:
            del client.calls[old]
        client.calls[origin.sequence] = answer
        self._counts[owner_of(origin.client_id)] += len(client.calls) - before
        while len(self.clients) > CLIENTS_MAX:
            self._forget(next(self._ages.to_forget()))
        while self._counts.total() > ANSWERS_MAX and len(self.clients) > 1:
            names = self._ages.to_forget(self._counts)
            self._forget(next(name for name in names if name != origin.client_id))

    def _forget(self, client: str) -> None:
        owner, remembered = owner_of(client), self.clients.pop(client)
        self._ages.drop(client)
        self._counts[owner] -= len(remembered.calls)
        if not self._counts[owner]:
            del self._counts[owner]
        self.forgotten.add(owner)

    def put(self, client: str, floor: int, calls: dict[int, Answer]) -> None:
        """Keep what was read of one client."""
        remembered = self.clients[client] = Remembered(floor)
        remembered.calls |= calls
        self._ages.renew(client)
        self._counts[owner_of(client)] += len(calls)


class Label(NamedTuple):
    """A checkpoint that was made, by whom, and how many labels are kept since."""

    label: str
    metadata: dict[str, Any]
    keep: int
    origin: Sent | None


class Logged(NamedTuple):
    """What was read from the log: a command, where a session was after one, or a label."""

    number: int
    is_counted: bool
    """Whether it is a command; else it came after the one of this number."""
    command: Command[Any] | None
    origin: Any
    place: SessionPlace | None
    next_table_id: int
    path: str
    label: Label | None = None
    labels: dict[str, bool] | None = None
    """All that are kept since, and whether each is protected."""
    epoch: int = 0
    """Of answers: the epoch in which they are given; 0: not known."""


class Memory:
    """What the log knows of the calls of this life and those that it goes on."""

    def __init__(self) -> None:
        self.life = uuid4().hex
        self.answers = Answers()
        self.is_new = True
        """Nothing was read."""
        self.label: dict[str, Any] | None = None
        """A checkpoint that was made, and whose record is missing."""
        self.epoch = 0
        """In which the answers were last written; 0: not known."""


class CommandLog:
    """The command log of an open store. With the engine, but for `wait` and what it says.

    Parameters
    ----------
    memory, read : what was read when the store was opened (`read_log`)
    number : of the last command
    sync_every_s : of level "interval"
    """

    def __init__(
        self,
        storage: Storage,
        codec: Codec,
        level: Durability,
        memory: Memory,
        read: RecordReader,
        *,
        number: int,
        sync_every_s: float,
        on_host: Callable[[Any], Any],
    ) -> None:
        self.level = level
        self.sync_every_s = sync_every_s
        self.memory = memory
        self._borrowed = 0  # the mark of the last record with arrays of a caller
        self.origin: Origin | None = None
        """Of the call that has the engine."""
        self.replay_s = 0.0
        """What replaying takes, about: the time of the commands that no commit has."""
        self.received: Record | None = None
        """The record of a leader's log that is executed: it is appended as it came."""
        self._codec = codec
        self._storage = storage
        self._on_host = on_host
        self.files = CommandFiles(
            storage.files,
            bytes.fromhex(storage.catalogue.store_id),
            read,
            sync_every_s=sync_every_s if level == "interval" else 0.0,
            failed=storage.fail,
        )
        try:
            if memory.label is not None:
                self._append_label(memory.label, storage.catalogue.head.command)
            if memory.is_new or memory.epoch != storage.catalogue.epoch:
                self.append_answers(number)
            checkpoints = storage.catalogue.checkpoints
            self.reserve_labels(checkpoints)
            self.append_labels(checkpoints, number)
            if storage.catalogue.commands is None:
                self.files.sync()
                storage.name_commands(self.files.synced)
        except BaseException:
            self.files.close()
            raise

    # Appending

    def begin(
        self, command: Command[Any] | None, place: SessionPlace | None, *, is_own: bool = False
    ) -> Callable[[int], None]:
        """Set aside room for a command; return what appends it, once it has its number. `is_own`:
        nobody else has its arrays.

        Raises CapacityError: nothing has changed.
        """
        began = perf_counter()
        if self.received is not None:
            parts: list[Part] = [self.received.body]
            self.files.reserve(len(self.received.body))
            return partial(self._end, parts, began, False)
        head: dict[str, Any] = {"next_table_id": self._storage.next_table_id}
        if place is not None:
            head |= {"session": place.session, **vars(place.place)}
        message: list[Part] = []
        if command is not None:
            head["verb"] = type(command).__name__
            message = self._codec.parts(command, self.origin, self._on_host)
        parts = [*_framed(head), *message]
        self.files.reserve(sum(map(len, parts)))
        return partial(self._end, parts, began, not is_own)

    def _end(self, parts: list[Part], began: float, is_borrowed: bool, number: int) -> None:
        mark = self.files.append(COMMAND, number, parts)
        if is_borrowed:
            self._borrowed = mark
        self.replay_s += perf_counter() - began

    def answered(self, command: Command[Any], result: Any, context: Context) -> None:
        """Keep what the call that has the engine is answered. Replaying finds it out again, but for
        a restore, after which the client is told of a new epoch."""
        if self.origin is not None:
            answer = Answer(type(command).__name__, result, context)
            self.memory.answers.add(self.origin, answer)

    def reserve_forgotten(self) -> None:
        """Set aside room for `append_forgotten`; CapacityError: nothing has changed."""
        self.files.reserve(_FORGOTTEN_BYTES_MAX)

    def append_forgotten(self, session: str, number: int) -> None:
        """Append that a session begins anew."""
        self.files.append(FORGOTTEN, number, _framed({"session": session}))

    def reserve_labels(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Set aside room for `append_labels`; CapacityError: nothing has changed."""
        self.files.reserve(sum(map(len, self._labels(checkpoints))))

    def append_labels(self, checkpoints: Sequence[Checkpoint], number: int) -> None:
        """Append which checkpoints are kept, and which of them are protected."""
        self.files.append(LABELS, number, self._labels(checkpoints))

    def _labels(self, checkpoints: Sequence[Checkpoint]) -> list[Part]:
        head: dict[str, Any] = {"labels": {one.label: one.protected for one in checkpoints}}
        if self.origin is not None:
            origin = self.origin
            head["origin"] = [origin.client_id, origin.sequence, origin.finished_below]
        return _framed(head)

    def read(self, record: Record) -> Logged:
        """Return what a record of a leader's log has; keep its answers."""
        return read_record(record, self._codec, self.memory, self._storage.catalogue)

    def append_received(self, record: Record) -> None:
        """Append a record of a leader's log that is no command."""
        self.files.reserve(len(record.body))
        self.files.append(record.kind, record.command, [record.body])

    # Commits

    def before_commit(self, number: int, label: dict[str, Any] | None) -> command_records.Place:
        """Begin a segment with what a commit does not have, and return where it ends when it is
        durable.

        A checkpoint's own answer is not there yet: who asked for it is named with the label, which
        the catalogue has if it was made.
        """
        self.files.begin_segment()
        if label is not None and self.origin is not None:
            origin = self.origin
            label["origin"] = [origin.client_id, origin.sequence, origin.finished_below]
        self.append_answers(number, label)
        self.files.sync()
        synced = self.files.synced
        if label is not None:
            self.files.reserve(sum(map(len, _framed(label))))
        return synced

    def after_commit(self, number: int, label: dict[str, Any] | None) -> None:
        """Append the label that was made, for standbys, and remove what the commit has."""
        if label is not None:
            self.files.append(CHECKPOINT, number, _framed(label))
        commands = self._storage.catalogue.commands
        assert commands is not None
        self.files.forget(commands.segment)
        self.replay_s = 0.0

    def _append_label(self, label: dict[str, Any], number: int) -> None:
        parts = _framed(label)
        self.files.reserve(sum(map(len, parts)))
        self.files.append(CHECKPOINT, number, parts)

    def append_answers(self, number: int, label: dict[str, Any] | None = None) -> None:
        """Append all answers that clients may still ask for; `label` is about to be made."""
        answers = self.memory.answers
        clients = [
            [
                name,
                client.floor,
                [[n, answer.verb, self._encoded(answer)] for n, answer in client.calls.items()],
            ]
            for name, client in answers.clients.items()
        ]
        head = {
            "life": self.memory.life,
            "epoch": self._storage.catalogue.epoch,
            "forgotten": sorted(answers.forgotten),
            "clients": clients,
        }
        if label is not None:
            head["label"] = label
        parts = _framed(head)
        self.files.reserve(sum(map(len, parts)))
        self.files.append(ANSWERS, number, parts)

    def _encoded(self, answer: Answer) -> str | None:
        if answer.result is None:
            return None
        return b64encode(self._codec.result_bytes(*answer)).decode()

    # Waiting

    @property
    def is_durable(self) -> bool:
        """Whether an acknowledged command is on the disk, so that no crash loses one."""
        return self.level == "commands"

    @property
    def mark(self) -> int:
        """What an acknowledgement that is given now waits for to be durable; 0: for nothing."""
        return self.files.appended if self.is_durable else 0

    def wait(self) -> None:
        """Return when what was appended by now may be acknowledged, and callers' arrays changed.
        Any thread."""
        if self.is_durable:
            self.files.wait(self.files.appended)
        else:
            self.files.wait(self._borrowed, written=True)

    def close(self) -> None:
        """Write and sync what waits, and end."""
        self.files.close()


def read_log(
    reader: RecordReader, codec: Codec, memory: Memory, catalogue: Catalogue
) -> Iterator[Logged]:
    """Yield what is in the log, in order; keep its answers in `memory`."""
    for record in reader:
        yield read_record(record, codec, memory, catalogue)


def read_record(record: Record, codec: Codec, memory: Memory, catalogue: Catalogue) -> Logged:
    """Return what a record has; keep its answers in `memory`."""
    head, message = _unframed(record.body)
    command = origin = place = label = None
    if record.kind == ANSWERS:
        _remember(head, codec, memory, catalogue, record.command)
    if record.kind == CHECKPOINT:
        sent = head.get("origin")
        label = Label(head["label"], head["metadata"], head["keep"], sent and Sent(*sent))
        memory.label = None
    if record.kind == LABELS and "origin" in head:  # its answer is lost, but it was done
        answer = Answer("SetRetention", None, _UNKNOWN)
        memory.answers.add(Sent(*head["origin"]), answer)
    if "session" in head:
        where = Place(head.get("step", BEGINS_ANEW), head.get("table_ids", {}))
        place = SessionPlace(head["session"], where)
    if "verb" in head:
        command, origin = codec.command(head["verb"], message)
    is_counted, next_table_id = record.kind == COMMAND, head.get("next_table_id", 0)
    number, path = record.command, record.path
    return Logged(
        number,
        is_counted,
        command,
        origin,
        place,
        next_table_id,
        path,
        label,
        labels=head.get("labels"),
        epoch=head.get("epoch", 0),
    )


def _remember(
    head: dict[str, Any], codec: Codec, memory: Memory, catalogue: Catalogue, number: int
) -> None:
    """Take up what a record has of clients' calls, in place of all before."""
    memory.life, memory.is_new = head["life"], False
    memory.epoch = head.get("epoch", 0)
    answers = memory.answers = Answers()
    answers.forgotten = set(head.get("forgotten", [""]))  # an early log did not say whose
    for name, floor, calls in head["clients"]:
        answers.put(name, floor, {n: _answer_of(verb, reply, codec) for n, verb, reply in calls})
    memory.label = None
    label = head.get("label")
    made = None if label is None else catalogue.checkpoint(label["label"])
    if label is not None and made is not None and made.state.command == number:
        memory.label = label
        if "origin" in label:
            note_checkpoint(memory, Sent(*label["origin"]), made, catalogue)


def note_checkpoint(memory: Memory, origin: Sent, made: Any, catalogue: Catalogue) -> None:
    """Keep what a checkpoint was answered."""
    state = Context(catalogue.store_id, catalogue.epoch, made.state.command, memory.life)
    memory.answers.add(origin, Answer("Checkpoint", made, state))


def _answer_of(verb: str, reply: str | None, codec: Codec) -> Answer:
    if reply is None:
        return Answer(verb, None, _UNKNOWN)
    return Answer(verb, *codec.result(verb, b64decode(reply)))


def _framed(head: dict[str, Any]) -> list[Part]:
    text = json.dumps(head).encode()
    return [(_LENGTH.pack(len(text)) + text).ljust(_padded(4 + len(text)), b"\0")]


def _unframed(body: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = _LENGTH.unpack_from(body)
    head: dict[str, Any] = json.loads(body[4 : 4 + size])
    return head, body[_padded(4 + size) :]


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
