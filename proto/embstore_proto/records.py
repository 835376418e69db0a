"""Commands and results in the command log: the messages that the wire has for them.

One codec serves both, so a log can be read in any language that has the .proto file, and a format
is described once.
"""

from collections.abc import Callable
from typing import Any

from embstore.arrays import is_on_device
from embstore.commands import Command
from embstore.results import Context
from embstore_proto.envelope import Origin
from embstore_proto.frame import Message
from embstore_proto.received import split
from embstore_proto.verbs import VERBS


class _HostMessage(Message):
    """A bulk message whose arrays may be in a device's memory."""

    def __init__(self, on_host: Callable[[Any], Any]) -> None:
        super().__init__()
        self._on_host = on_host

    def add(self, array: Any) -> Any:
        """Append an array, brought to the host, and return its place for the header."""
        return super().add(self._on_host(array) if is_on_device(array) else array)


class WireRecords:
    """The codec of the command log."""

    def parts(
        self, command: Command[Any], origin: Origin | None, on_host: Callable[[Any], Any]
    ) -> list[bytes | memoryview]:
        """Return a command as a message, in parts; `on_host` brings an array from a device."""
        verb = VERBS[type(command).__name__]
        message = _HostMessage(on_host) if verb.is_bulk else None
        request = verb.outgoing(command, message)
        header = request.serialised(origin)
        return [header] if message is None else message.framed(header).parts

    def command(self, verb: str, message: bytes) -> tuple[Command[Any], Origin | None]:
        """Return the command of a message, and its origin."""
        arrived = VERBS[verb].arrived(message, header_bytes_max=len(message))  # our own: no limit
        return arrived.command, arrived.origin

    def result_bytes(self, verb: str, result: Any, context: Context) -> bytes:
        """Return a result as a reply."""
        return VERBS[verb].framed(result, context).joined()

    def result(self, verb: str, reply: bytes) -> tuple[Any, Context]:
        """Return the result of a reply, and the state that it is of."""
        answer = VERBS[verb].answer(split(reply) if VERBS[verb].has_bulk_reply else reply)
        return answer.value, answer.context
