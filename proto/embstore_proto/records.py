"""Commands and results in the command log, encoded as the messages that are sent on the wire.

One codec serves the log and the wire. Therefore the log can be read in any language for which the
.proto file can be compiled, and each format is described only once.
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
    """A bulk message that also accepts arrays in a device's memory."""

    def __init__(self, on_host: Callable[[Any], Any]) -> None:
        super().__init__()
        self._on_host = on_host

    def add(self, array: Any) -> Any:
        """Append an array, copied to the host, and return its description for the header."""
        return super().add(self._on_host(array) if is_on_device(array) else array)


class WireRecords:
    """The codec of the command log."""

    def parts(
        self, command: Command[Any], origin: Origin | None, on_host: Callable[[Any], Any]
    ) -> list[bytes | memoryview]:
        """Return a command as a message in parts; `on_host` copies an array from a device to the
        host."""
        verb = VERBS[type(command).__name__]
        message = _HostMessage(on_host) if verb.is_bulk else None
        request = verb.outgoing(command, message)
        header = request.serialised(origin)
        return [header] if message is None else message.framed(header).parts

    def command(self, verb: str, message: bytes) -> tuple[Command[Any], Origin | None]:
        """Return the command in a message, and its origin."""
        arrived = VERBS[verb].arrived(message, header_bytes_max=len(message))  # trusted: no limit
        return arrived.command, arrived.origin

    def result_bytes(self, verb: str, result: Any, context: Context) -> bytes:
        """Return a result as a serialised reply."""
        return VERBS[verb].framed(result, context).joined()

    def result(self, verb: str, reply: bytes) -> tuple[Any, Context]:
        """Return the result in a reply, and the state of the store in which it was computed."""
        answer = VERBS[verb].answer(split(reply) if VERBS[verb].has_bulk_reply else reply)
        return answer.value, answer.context
