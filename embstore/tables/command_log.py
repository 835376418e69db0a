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

What is logged of an update is what decides it: each key once, with the sum of its gradients (rule
2). Of a Zipf batch that is a third of the bytes; and it is the log's own, so that a caller who may
change an array after the call need not wait until it was read. A client has summed already.

**Answers.** A client may send a command again across a crash, so who sent it is in the log, and the
answers that a client may still ask for are kept here. A commit makes the logged commands
superfluous, but not these answers: it begins a segment whose first record has them. They belong to
a **life**, which ends where they are lost: it is what clients know as the server's instance.

What is logged of a look-ahead step is what it did: an update of the tables' keys, and the session's
new place.

A record's body is a JSON object, its length before it (4 bytes), padded to a multiple of 64, and
then the message that the wire has for the command.
"""

import base64
import json
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol, get_args
from uuid import uuid4

from embstore.arithmetic import sum_by_key, unique
from embstore.arrays import is_on_device
from embstore.commands import Command, TableGradients, Update
from embstore.results import Context
from embstore.storage.command_files import CommandFiles
from embstore.storage.command_records import Part, Place, RecordReader
from embstore.storage.storage import Storage

Durability = Literal["checkpoint", "interval", "commands"]
LEVELS: tuple[Durability, ...] = get_args(Durability)

_COMMAND, _ANSWERS, _FORGOTTEN = 1, 2, 3
"""Kinds of records: a command; answers; a session's place, forgotten."""
CALLS_MAX = 1024
"""Answers that are kept of one client."""
CLIENTS_MAX = 4096
_UNKNOWN = Context("", 0, 0)
_LENGTH = struct.Struct("<I")
_ALIGNMENT = 64
_HEAD_BYTES_MAX = 4096


class Origin(Protocol):
    """Who sent a command (`embstore_proto.envelope.Origin`)."""

    client_id: str
    sequence: int
    finished_below: int


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


FORGOTTEN = -1
"""The step of a session that begins anew."""


class SessionPlace(NamedTuple):
    """Where a session is after a step."""

    session: str
    step: int


class Answer(NamedTuple):
    """What a command was answered; `result` None: that was lost in a crash, but it was done."""

    verb: str
    result: Any
    context: Context


class Answers:
    """The answers that clients may still ask for: by client and sequence."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, dict[int, Answer]] = OrderedDict()

    def add(self, origin: Origin, answer: Answer) -> None:
        """Keep an answer; forget those that its client has, and clients by age."""
        calls = self._clients.setdefault(origin.client_id, {})
        self._clients.move_to_end(origin.client_id)
        floor = max(origin.finished_below, origin.sequence - CALLS_MAX + 1)
        for old in [sequence for sequence in calls if sequence < floor]:
            del calls[old]
        calls[origin.sequence] = answer
        while len(self._clients) > CLIENTS_MAX:
            self._clients.popitem(last=False)

    def put(self, client: str, sequence: int, answer: Answer) -> None:
        """Keep an answer that was read."""
        self._clients.setdefault(client, {})[sequence] = answer

    def __iter__(self) -> Iterator[tuple[str, int, Answer]]:
        for client, calls in self._clients.items():
            for sequence, answer in calls.items():
                yield client, sequence, answer


class Logged(NamedTuple):
    """What was read from the log: a command, or where a session was after one."""

    number: int
    is_counted: bool
    """Whether it is a command; else it came after the one of this number."""
    command: Command[Any] | None
    origin: Any
    place: SessionPlace | None
    next_table_id: int
    path: str


class Memory:
    """What the log knows of the calls of this life and those that it goes on."""

    def __init__(self) -> None:
        self.life = uuid4().hex
        self.answers = Answers()
        self.is_new = True
        """Nothing was read."""


class CommandLog:
    """The command log of an open store. With the engine, but for `wait` and what it says.

    Parameters
    ----------
    memory, end : of what was read when the store was opened (`read_log`)
    sync_every_s : of level "interval"
    """

    def __init__(
        self,
        storage: Storage,
        codec: Codec,
        level: Durability,
        memory: Memory,
        end: Place,
        *,
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
        self.appended: Callable[[], None] = lambda: None
        """Called after each command."""
        self._codec = codec
        self._storage = storage
        self._on_host = on_host
        self.files = CommandFiles(
            storage.files,
            bytes.fromhex(storage.catalogue.store_id),
            end,
            sync_every_s=sync_every_s if level == "interval" else 0.0,
            failed=storage.fail,
        )
        if memory.is_new:
            self._append_answers([], storage.catalogue.head.command)

    # Appending

    def begin(
        self, command: Command[Any] | None, place: SessionPlace | None
    ) -> Callable[[int], None]:
        """Set aside room for a command; return what appends it, once it has its number.

        Raises CapacityError: nothing has changed.
        """
        began = perf_counter()
        head: dict[str, Any] = {"next_table_id": self._storage.next_table_id}
        if place is not None:
            head |= {"session": place.session, "step": place.step}
        message: list[Part] = []
        smaller = command
        if isinstance(command, Update) and self.origin is None and place is None:
            smaller = Update(tuple(map(_summed, command.tables)), command.options)
        if smaller is not None:
            head["verb"] = type(command).__name__
            message = self._codec.parts(smaller, self.origin, self._on_host)
        parts = [*_framed(head), *message]
        self.files.reserve(sum(map(len, parts)))
        return partial(self._end, parts, began, smaller is command)

    def _end(self, parts: list[Part], began: float, is_borrowed: bool, number: int) -> None:
        mark = self.files.append(_COMMAND, number, parts)
        if is_borrowed:
            self._borrowed = mark
        self.replay_s += perf_counter() - began
        self.appended()

    def answered(self, command: Command[Any], result: Any, context: Context) -> None:
        """Keep what the call that has the engine is answered. Where replaying does not find it out,
        because a commit has the command already, it is logged."""
        if self.origin is None:
            return
        answer = Answer(type(command).__name__, result, context)
        self.memory.answers.add(self.origin, answer)
        if self._storage.catalogue.head.command == context.command:
            self._append_answers([(self.origin.client_id, self.origin.sequence, answer)])

    def append_forgotten(self, session: str, number: int) -> None:
        """Append that a session begins anew; CapacityError: nothing has changed."""
        parts = _framed({"session": session})
        self.files.reserve(sum(map(len, parts)))
        self.files.append(_FORGOTTEN, number, parts)

    # Commits

    def before_commit(self, number: int) -> None:
        """Begin a segment with what a commit does not have, and wait until it is durable."""
        self.files.begin_segment()
        self._append_answers(list(self.memory.answers), number)
        self.files.sync()

    def after_commit(self) -> None:
        """Remove what the commit has."""
        self.files.forget()
        self.replay_s = 0.0

    def _append_answers(
        self, answers: Sequence[tuple[str, int, Answer]], number: int | None = None
    ) -> None:
        listed = [
            [client, sequence, answer.verb, self._encoded(answer)]
            for client, sequence, answer in answers
        ]
        parts = _framed({"life": self.memory.life, "answers": listed, "whole": number is not None})
        self.files.reserve(sum(map(len, parts)))
        head = self._storage.catalogue.head.command
        self.files.append(_ANSWERS, head if number is None else number, parts)

    def _encoded(self, answer: Answer) -> str | None:
        if answer.result is None:
            return None
        return base64.b64encode(self._codec.result_bytes(*answer)).decode()

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


def _summed(part: TableGradients) -> TableGradients:
    """Return each key once, with the sum of its gradients; those of a device as they are."""
    if is_on_device(part.keys) or is_on_device(part.gradients):
        return part
    keys, inverse = unique(part.keys)
    sums = sum_by_key(inverse, len(keys), part.gradients)
    return TableGradients(part.table, part.table_id, keys, sums)


def read_log(reader: RecordReader, codec: Codec, memory: Memory) -> Iterator[Logged]:
    """Yield what is in the log, in order; keep its answers in `memory`."""
    for record in reader:
        head, message = _unframed(record.body)
        command = origin = place = None
        if record.kind == _ANSWERS:
            memory.life, memory.is_new = head["life"], False
            if head["whole"]:
                memory.answers = Answers()
            for client, sequence, verb, reply in head["answers"]:
                found = (None, _UNKNOWN)
                if reply is not None:
                    found = codec.result(verb, base64.b64decode(reply))
                memory.answers.put(client, sequence, Answer(verb, *found))
        if "session" in head:
            place = SessionPlace(head["session"], head.get("step", FORGOTTEN))
        if "verb" in head:
            command, origin = codec.command(head["verb"], message)
        is_counted, next_table_id = record.kind == _COMMAND, head.get("next_table_id", 0)
        number, path = record.command, record.path
        yield Logged(number, is_counted, command, origin, place, next_table_id, path)


def _framed(head: dict[str, Any]) -> list[Part]:
    text = json.dumps(head).encode()
    return [(_LENGTH.pack(len(text)) + text).ljust(-(-(4 + len(text)) // 64) * 64, b"\0")]


def _unframed(body: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = _LENGTH.unpack_from(body)
    head: dict[str, Any] = json.loads(body[4 : 4 + size])
    return head, body[-(-(4 + size) // _ALIGNMENT) * _ALIGNMENT :]
