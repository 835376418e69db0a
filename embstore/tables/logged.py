"""Reading the records of the command log.

A record's body is the length of a JSON object (4 bytes) and the object, padded together to a
multiple of 64 bytes, followed by the command's message, which is encoded as on the wire.
"""

import json
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from embstore.commands import Command
from embstore.results import Context, Place
from embstore.storage.catalogue import Catalogue
from embstore.storage.command_records import (
    ANSWERS,
    CHECKPOINT,
    COMMAND,
    LABELS,
    Part,
    Record,
    RecordReader,
)
from embstore.tables.answers import Answer, Answers, ClusterCommands, Sent

_UNKNOWN = Context("", 0, 0)
_LENGTH = struct.Struct("<I")
_ALIGNMENT = 64


class Codec(Protocol):
    """Conversion of commands and results to bytes, as on the wire
    (`embstore_proto.records`)."""

    def parts(
        self, command: Command[Any], origin: Any, on_host: Callable[[Any], Any]
    ) -> list[Part]:
        """Return a command as a message, in parts. `on_host` is a function that copies an array
        from a device."""

    def command(self, verb: str, message: bytes) -> tuple[Command[Any], Any]:
        """Return the command in a message, and the command's origin or None."""

    def result_bytes(self, verb: str, result: Any, context: Context) -> bytes:
        """Return a result in the form of a reply."""

    def result(self, verb: str, reply: bytes) -> tuple[Any, Context]:
        """Return the result in a reply, and the state of the store that the reply states."""


BEGINS_ANEW = -1
"""A value in place of a step: the resume position of the session is forgotten."""


class SessionPlace(NamedTuple):
    """The resume position of a session after a step, or after another command of the session."""

    session: str
    place: Place
    is_step: bool = True


class Label(NamedTuple):
    """A checkpoint that was made, its origin, and how many checkpoints were kept from that time
    on."""

    label: str
    metadata: dict[str, Any]
    keep: int
    origin: Sent | None


class Logged(NamedTuple):
    """An entry of the command log: a command, a session's resume position after a command, or a
    label."""

    number: int
    is_counted: bool
    """Whether the entry is a command. Then `number` is the number of the command; otherwise the
    entry comes after the command with this number."""
    command: Command[Any] | None
    origin: Any
    place: SessionPlace | None
    next_table_id: int
    path: str
    label: Label | None = None
    labels: dict[str, bool] | None = None
    """All labels that are kept, and for each whether it is protected."""
    sessions: list[str] | None = None
    """All sessions that have a resume position."""
    epoch: int = 0
    """For answers: the epoch in which the answers were given; 0: not known."""
    life: int = 0
    """For a command: the life that gave the command its number (`embstore.storage.lives`)."""
    part_id: int = 0
    """For a command: the id of the cluster's command of which it is a part; 0: it has none."""


class Memory:
    """The answers of this process, and those of earlier processes if none of their answers is
    lost."""

    def __init__(self, cluster_commands: ClusterCommands) -> None:
        self.cluster_commands = cluster_commands
        """The commands of the cluster of which this shard has executed or refuses its part."""
        self.instance = uuid4().hex
        """The id by which clients recognize whether answers to their calls may be lost."""
        self.answers = Answers()
        self.is_new = True
        """Whether no answers were read from the command log."""
        self.label: dict[str, Any] | None = None
        """The label of a checkpoint that was made, but whose record is missing in the command
        log."""
        self.epoch = 0
        """The epoch in which the answers were last written; 0: not known."""


def read_log(
    reader: RecordReader, codec: Codec, memory: Memory, catalogue: Catalogue
) -> Iterator[Logged]:
    """Yield the entries of the command log, in order, and keep its answers in `memory`."""
    for record in reader:
        yield read_record(record, codec, memory, catalogue)


def read_record(record: Record, codec: Codec, memory: Memory, catalogue: Catalogue) -> Logged:
    """Return the content of a record, and keep the answers in it in `memory`."""
    head, message = _unframed(record.body)
    command = origin = place = label = None
    if record.kind == ANSWERS:
        _remember(head, codec, memory, catalogue, record.command)
    if record.kind == CHECKPOINT:
        sent = head.get("origin")
        label = Label(head["label"], head["metadata"], head["keep"], sent and Sent(*sent))
        memory.label = None
    if record.kind == LABELS and "origin" in head:  # the answer is lost; the command was executed
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
        sessions=head.get("sessions"),
        epoch=head.get("epoch", 0),
        life=record.life,
        part_id=head.get("part_id", 0),
    )


def _remember(
    head: dict[str, Any], codec: Codec, memory: Memory, catalogue: Catalogue, number: int
) -> None:
    """Read the answers to clients' calls from a record. These answers replace all earlier
    answers."""
    memory.instance, memory.is_new = head["instance"], False
    memory.epoch = head.get("epoch", 0)
    answers = memory.answers = Answers()
    answers.forgotten = set(head["forgotten"])
    memory.cluster_commands.replace(head.get("answered", ()), head.get("given_up", ()))
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
    """Keep the answer of a checkpoint, without its metadata."""
    state = Context(catalogue.store_id, catalogue.epoch, made.state.command, memory.instance)
    memory.answers.add(origin, Answer("Checkpoint", made.described().without_metadata, state))


def _answer_of(verb: str, reply: str | None, codec: Codec) -> Answer:
    if reply is None:
        return Answer(verb, None, _UNKNOWN)
    return Answer(verb, *codec.result(verb, b64decode(reply)))


def framed(head: dict[str, Any]) -> list[Part]:
    """Return the head of a record as the bytes that precede the message."""
    text = json.dumps(head).encode()
    return [(_LENGTH.pack(len(text)) + text).ljust(_padded(4 + len(text)), b"\0")]


def _unframed(body: bytes) -> tuple[dict[str, Any], bytes]:
    (size,) = _LENGTH.unpack_from(body)
    head: dict[str, Any] = json.loads(body[4 : 4 + size])
    return head, body[_padded(4 + size) :]


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
