"""Answers of commands that clients may still send again.

A client may send a command again across a crash, so the log has each command's origin, and the
answers that a client may still need are kept here. A commit makes the logged commands superfluous,
but not these answers: it begins a segment whose first record has them. They belong to an
**instance** of the server, which ends where they are lost: clients know it by its id.
"""

from collections import Counter, OrderedDict
from typing import Any, NamedTuple, Protocol

from embstore.results import Context
from embstore.tables.owners import Ages, owner_of

CALLS_MAX = 1024
"""Answers that are kept of one client."""
CLIENTS_MAX = 4096
"""Clients of which answers are kept; `tables.owners` says of which ones."""
ANSWERS_MAX = 16_384
"""Answers that are kept of all clients: each commit writes them."""


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
        """The client has the answers of all sequences below."""


class Sent(NamedTuple):
    """An origin that was read."""

    client_id: str
    sequence: int
    finished_below: int


class Answer(NamedTuple):
    """The answer of a command; `result` None: it was lost in a crash, but the command was done."""

    verb: str
    result: Any
    context: Context


class Remembered:
    """The remembered calls of one client."""

    def __init__(self, floor: int = 1) -> None:
        self.calls: dict[int, Answer] = {}
        """Answers by sequence."""
        self.floor = floor
        """Every lower sequence has been forgotten."""


class Answers:
    """The answers that clients may still need, and the owners of which some are forgotten."""

    def __init__(self) -> None:
        self.clients: OrderedDict[str, Remembered] = OrderedDict()
        self.forgotten: set[str] = set()
        """Owners of forgotten clients: their client that is not here may have had calls."""
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
        """Keep the answers read for one client."""
        remembered = self.clients[client] = Remembered(floor)
        remembered.calls |= calls
        self._ages.renew(client)
        self._counts[owner_of(client)] += len(calls)
