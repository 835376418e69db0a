"""The traffic of each transport, since the process began. Event loop only; any thread counts
`copies`."""

from embstore_proto.received import Copies
from embstore_server.path.caller import Caller


class Traffic:
    """The counts of one transport."""

    def __init__(self) -> None:
        self.calls = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.copies = Copies()
        """Bytes copied, in addition to the engine's own reads and writes."""
        self.connections: int | None = None
        """Open connections; None: the library does not report them."""
        self.segment_bytes = 0
        """Bytes of memory that are shared with clients."""
        self.device_segment_bytes = 0
        """Bytes of a GPU's memory that are shared with clients."""

    def count(self, caller: Caller) -> None:
        """Count a call that has ended."""
        self.calls += 1
        self.received_bytes += caller.received_bytes
        self.sent_bytes += caller.sent_bytes
