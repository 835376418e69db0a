"""A call on its way to a server: one value, which is passed from layer to layer.

Every concern between a handle and a connection is a **layer**: an object that is called with a call
and with the layers below. A layer can change the command on the way down, and the answer on the way
up. A layer depends on the parts and the declared properties of the command (`embstore.parts`,
`embstore.commands`), never on the command's type. `executor` puts the layers together; a concern is
removed by removing its layer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from embstore.commands import Command, PartOf, Progress
from embstore_proto.frame import Message
from embstore_proto.verbs import Answer


@dataclass(slots=True)
class Call:
    """A command, and how it is to be executed; see `embstore.commands.Executor`."""

    command: Command[Any]
    out: Any = None
    timeout_s: float | None = None
    progress: Progress | None = None
    part_of: PartOf | None = None

    # Facts that a layer passes to the layers below
    counts: Mapping[str, int] = field(default_factory=dict)
    """For a command of a step: by table, the number of keys that this client has announced."""
    take: Callable[[Iterator[Answer]], Any] | None = None
    """Function that makes the result from several answers, called once per attempt; None: the last
    answer is the result."""
    message: Message | None = None
    """The message that carries the arrays. None: the last layer makes a message of arrays in host
    memory."""
    reply_bytes: int | None = None
    """Approximate bytes of the returned rows, as float32; None: computed from the command."""


Below = Callable[[Call], Any]
"""A function that executes a call and returns its result."""


class Layer(Protocol):
    """One concern of calls. Any thread may use it."""

    def __call__(self, call: Call, below: Below) -> Any:
        """Execute a call, with the help of the layers below, and return its result."""


def chained(layers: Sequence[Layer], last: Below) -> Below:
    """Return a function that passes a call through `layers`, from the first to the last, and then
    to `last`."""
    for layer in reversed(layers):
        last = partial(layer, below=last)
    return last
