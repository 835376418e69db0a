"""Answers to commands that clients may still send again.

A client may send a command again after a crash. Therefore the command log contains each command's
origin, and this module keeps the answers that clients may still need. A commit makes the logged
commands superfluous, but not these answers: the commit begins a segment whose first record contains
the answers. Answers belong to an **instance** of the server, which ends when the answers are lost.
Clients recognize the instance by its id.

**Bounds.** Each commit writes all answers, so the bytes of answers are bounded, per client and in
total. Beyond the bound of a client, its answers with the lowest sequence numbers are dropped. The
bytes are estimated (`answer_bytes`) from the answers alone, so that a store that executes the same
commands again drops the same answers.

**A shard** also keeps the ids of the cluster's commands that it has answered or refuses
(`embstore.engine.sharding`). The same record contains them, so they survive a restart, and a
standby has them, too.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, Protocol

from embstore.commands.executor import sender_of
from embstore.errors import OutcomeUnknownError
from embstore.results import Context
from embstore.tables.owners import Ages, owner_of

CALLS_MAX = 1024
"""The most answers that are kept for one client, if their bytes allow it."""
CLIENT_BYTES_MAX = 1 << 20
"""The most bytes of answers that are kept for one client; one answer is always kept."""
CLIENTS_MAX = 4096
"""The most clients whose answers are kept; `tables.owners` decides which clients."""
ANSWERS_BYTES_MAX = 4 << 20
"""The most bytes of answers that are kept for all clients together."""
SENDERS_MAX = 1 << 14
"""The number of senders whose last commands a shard knows. A client has as many senders as it has
commands in flight, and one more after each command that failed. A barrier does not see a half
executed command if as many other senders have sent commands since."""
GIVEN_UP_MAX = 1 << 14
"""The number of given up commands that a shard refuses; it forgets older ones. Each belongs to a
client that was killed or stopped."""
ANSWER_BYTES = 128
"""The bytes of an answer with an empty result: of its origin, verb and context."""


def answer_bytes(result: Any) -> int:
    """Return the approximate bytes of an answer with this result."""
    return ANSWER_BYTES + _size(result)


def _size(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(_size(key) + _size(one) for key, one in value.items())
    if isinstance(value, tuple | list):
        return sum(map(_size, value))
    if is_dataclass(value):
        return sum(_size(getattr(value, part.name)) for part in fields(value))
    return 0 if value is None else 8


class Origin(Protocol):
    """The sender of a command (`embstore_proto.envelope.Origin`)."""

    @property
    def client_id(self) -> str:
        """The id of the client."""

    @property
    def sequence(self) -> int:
        """The number of the call."""

    @property
    def finished_below(self) -> int:
        """A sequence number: the client has received the answers of all lower numbers."""


class Sent(NamedTuple):
    """An origin that was read from the log."""

    client_id: str
    sequence: int
    finished_below: int


class Answer(NamedTuple):
    """The answer to a command. `result` is None if the answer was lost in a crash, but the command
    was executed."""

    verb: str
    result: Any
    context: Context


class Remembered:
    """The remembered calls of one client, with their answers."""

    def __init__(self, floor: int = 1) -> None:
        self.calls: dict[int, Answer] = {}
        """The answers by sequence number."""
        self.floor = floor
        """A sequence number: the answers of all lower numbers have been dropped."""
        self.bytes = 0
        """Bytes of the answers."""

    def keep(self, sequence: int, answer: Answer) -> None:
        """Keep an answer, and drop the lowest sequence numbers if the bytes exceed the bound."""
        self._drop(sequence)
        self.calls[sequence] = answer
        self.bytes += answer_bytes(answer.result)
        while self.bytes > CLIENT_BYTES_MAX and len(self.calls) > 1:
            self.forget_below(min(self.calls) + 1)

    def forget_below(self, sequence: int) -> None:
        """Drop the answers of all sequence numbers below `sequence`."""
        self.floor = max(self.floor, sequence)
        for old in [old for old in self.calls if old < self.floor]:
            self._drop(old)

    def _drop(self, sequence: int) -> None:
        if (answer := self.calls.pop(sequence, None)) is not None:
            self.bytes -= answer_bytes(answer.result)


class Answers:
    """The answers that clients may still need, and the owners of dropped answers."""

    def __init__(self) -> None:
        self.clients: OrderedDict[str, Remembered] = OrderedDict()
        self.forgotten: set[str] = set()
        """The owners of forgotten clients. An unknown client of such an owner may have made calls
        before."""
        self._ages = Ages()
        self._bytes: Counter[str] = Counter()  # by owner

    def add(self, origin: Origin, answer: Answer) -> None:
        """Keep an answer. Drop answers that the client has received, and clients beyond the
        bounds."""
        client = self.clients.setdefault(origin.client_id, Remembered())
        self.clients.move_to_end(origin.client_id)
        self._ages.renew(origin.client_id)
        before = client.bytes
        client.forget_below(max(origin.finished_below, origin.sequence - CALLS_MAX + 1))
        client.keep(origin.sequence, answer)
        self._bytes[owner_of(origin.client_id)] += client.bytes - before
        while len(self.clients) > CLIENTS_MAX:
            self._forget(next(self._ages.to_forget()))
        while self._bytes.total() > ANSWERS_BYTES_MAX and len(self.clients) > 1:
            names = self._ages.to_forget(self._bytes)
            self._forget(next(name for name in names if name != origin.client_id))

    def _forget(self, client: str) -> None:
        owner, remembered = owner_of(client), self.clients.pop(client)
        self._ages.drop(client)
        self._bytes[owner] -= remembered.bytes
        if not self._bytes[owner]:
            del self._bytes[owner]
        self.forgotten.add(owner)

    def put(self, client: str, floor: int, calls: dict[int, Answer]) -> None:
        """Keep the answers for one client that were read from the command log."""
        remembered = self.clients[client] = Remembered(floor)
        for sequence, answer in calls.items():
            remembered.keep(sequence, answer)
        self._ages.renew(client)
        self._bytes[owner_of(client)] += remembered.bytes


class ClusterCommands:
    """The cluster's commands that one shard has answered or given up: the last one of each sender
    that was answered, and those of which the shard refuses its part."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}  # the id by sender; the sender that answered last is last
        self._given_up: dict[int, None] = {}  # the newest is last

    def check(self, command_id: int) -> None:
        """Raise OutcomeUnknownError if a command was given up."""
        if command_id in self._given_up:
            raise OutcomeUnknownError(
                "another client made a checkpoint, or changed the shard map, while this command "
                "was executed by some shards only, and did not wait for it any longer"
            )

    def answered(self, command_id: int) -> None:
        """Note that this shard's part of a command was answered; 0: it needs no note."""
        if command_id:
            sender = sender_of(command_id)
            self._last.pop(sender, None)
            self._last[sender] = command_id
            if len(self._last) > SENDERS_MAX:
                del self._last[next(iter(self._last))]

    def give_up(self, ids: Iterable[int]) -> None:
        """Forget these commands where they were answered, and refuse the others from now on."""
        for command_id in ids:
            if self._last.get(sender := sender_of(command_id)) == command_id:
                del self._last[sender]
            else:
                self._given_up[command_id] = None
        while len(self._given_up) > GIVEN_UP_MAX:
            del self._given_up[next(iter(self._given_up))]

    def replace(self, answered: Iterable[int], given_up: Iterable[int] = ()) -> None:
        """Take over the ids of another shard, or those of a record of the command log."""
        self._last = {sender_of(command_id): command_id for command_id in answered}
        self._given_up = dict.fromkeys(given_up)

    @property
    def ids(self) -> tuple[int, ...]:
        """The id of each sender's last answered command; the sender that answered last is last."""
        return tuple(self._last.values())

    @property
    def given_up(self) -> tuple[int, ...]:
        """The ids of the commands that are refused; the newest is last."""
        return tuple(self._given_up)
