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
"""

from collections import Counter, OrderedDict
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, Protocol

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
