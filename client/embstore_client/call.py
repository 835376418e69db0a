"""A call on its way to a server: one value, which layers pass on.

Between a handle and a connection every concern is a **layer**: an object that is called with a call
and with the layers below. It may change the command on the way down, and the answer on the way up;
it asks for the parts and the properties of the command (`embstore.parts`, `embstore.commands`),
never which it is. `executor` puts the layers together; one layer less is one concern less.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from embstore.commands import Command, Progress
from embstore_proto.frame import Message
from embstore_proto.verbs import Answer


@dataclass(slots=True)
class Call:
    """How a command is executed; see `embstore.commands.Executor`."""

    command: Command[Any]
    out: Any = None
    timeout_s: float | None = None
    progress: Progress | None = None
    map_version: int = 0

    # What layers say to those below
    counts: Mapping[str, int] = field(default_factory=dict)
    """For a command of a step: how many keys of each table this client has announced."""
    take: Callable[[Iterator[Answer]], Any] | None = None
    """Makes the result of several answers; None: the last is it. Called once for each attempt."""
    message: Message | None = None
    """The message that carries the arrays; None: a message in the host's memory."""
    reply_bytes: int | None = None
    """About the bytes of the rows that come back, as float32; None: computed from the command."""


Below = Callable[[Call], Any]
"""Executes a call, and returns its result."""


class Layer(Protocol):
    """One concern of calls. Any thread."""

    def __call__(self, call: Call, below: Below) -> Any:
        """Execute a call by the layers below, and return its result."""


def chained(layers: Sequence[Layer], last: Below) -> Below:
    """Return a function that passes a call through layers, the first on top."""
    for layer in reversed(layers):
        last = partial(layer, below=last)
    return last
