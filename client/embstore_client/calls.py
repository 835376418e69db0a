"""The verbs of the wire as Python calls: requests made, replies taken apart.

Between the object model (store, table) and the transport. Any thread.

What the wire cannot carry is refused here, with the error that the engine has for it: names and
labels that are no text, metadata that is no JSON, numbers beyond 64 bits. So is a call that is too
large, as it was before its keys were made unique: whether a call is taken may not depend on where
the store is. The rest is the server's to check.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from embstore.arrays import Rows, fp32_scalar
from embstore.config import Limits, TableConfig, check_name
from embstore.errors import (
    CapacityError,
    CheckpointNotFoundError,
    InvalidArgumentError,
    TableNotFoundError,
)
from embstore.results import Acknowledged, Checkpoint, HotSetFacts, State, TableEntry
from embstore_client import messages
from embstore_client.shares import UniqueKeys
from embstore_client.transport import Transport
from embstore_proto.codec import Message, Received, array_of
from embstore_proto.configs import Described, described_of, message_of
from embstore_proto.v1 import embstore_pb2 as pb

_UINT64_MAX = 2**64 - 1


class Calls:
    """One connection's calls. `limits` are the server's, as told when it was connected to."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.limits = Limits()

    # Bulk

    def lookup(
        self,
        keys: Mapping[str, UniqueKeys],
        ids: Mapping[str, int],
        dims: Mapping[str, int],
        admit: bool,
    ) -> list[Rows]:
        """Return the rows of each table's unique keys."""
        self.check_bytes(sum(once.call_bytes(dims[name]) for name, once in keys.items()))
        message = Message()
        header = messages.lookup(message, keys, ids, bool(admit))
        size = sum(4 * dims[name] * len(once.keys) for name, once in keys.items())
        return self.rows("Lookup", header, message, size)

    def check_bytes(self, size: int) -> None:
        """Refuse a call that is too large.

        Raises
        ------
        InvalidArgumentError
        """
        if size > self.limits.call_bytes_max:
            raise InvalidArgumentError(
                f"expected a call of at most {self.limits.call_bytes_max} bytes of keys and rows "
                f"(limits.call_bytes_max), found {size}; split the call"
            )

    def rows(self, name: str, header: Any, message: Message, reply_bytes: int) -> list[Rows]:
        """Do a call that returns rows; of ReadRows weights and state."""
        received = self.transport.bulk(name, header, message, reply_bytes=reply_bytes)
        reply = pb.RowsReply.Header.FromString(received.header)
        self.transport.knows(reply.context)
        places = []
        for table in reply.tables:
            places += [table.rows, table.state] if table.HasField("state") else [table.rows]
        return [array_of(received, place, np.float32, 2, "the reply") for place in places]

    def write(self, name: str, header: Any, message: Message) -> pb.BulkAcknowledgedReply.Header:
        """Do a call that writes, and return its acknowledgement."""
        received = self.transport.bulk(name, header, message, reply_bytes=0, mutates=True)
        reply = pb.BulkAcknowledgedReply.Header.FromString(received.header)
        self.transport.knows(reply.context)
        return reply

    # The process

    def server_info(self, timeout_s: float | None = None) -> pb.GetServerInfoReply:
        """Return what the server says of itself."""
        return self.transport.call(
            "GetServerInfo",
            pb.GetServerInfoRequest(),
            pb.GetServerInfoReply.FromString,
            timeout_s=timeout_s,
        )

    def stats(self, table: str = "", table_id: int | None = None) -> dict[str, Any]:
        """Return the figures of a table, or of the store."""
        request = pb.GetStatsRequest(table=table, table_id=table_id)
        stats: dict[str, Any] = json.loads(
            self.transport.call("GetStats", request, pb.GetStatsReply.FromString).json
        )
        return stats

    def resize_cache(self, cache_bytes: int) -> None:
        """Change the cache's budget."""
        if cache_bytes > _UINT64_MAX:
            raise CapacityError(f"cache_bytes {cache_bytes} is more than any system can address")
        request = pb.ResizeCacheRequest(cache_bytes=cache_bytes)
        self.transport.call("ResizeCache", request, pb.ResizeCacheReply.FromString)

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant of the server's store does not hold."""
        reply = self.transport.call(
            "CheckIntegrity", pb.CheckIntegrityRequest(), pb.CheckIntegrityReply.FromString
        )
        assert not reply.violation, reply.violation

    # Tables

    def create_table(self, config: TableConfig) -> Described:
        """Make a table, or return the one that was made so before."""
        request = pb.CreateTableRequest(config=message_of(config))
        reply = self.transport.call("CreateTable", request, pb.TableReply.FromString, mutates=True)
        return described_of(reply.table)

    def name(self, table: Any) -> str:
        """Return a table's name, or raise TableNotFoundError for what no table can be called."""
        try:
            return check_name(table)
        except InvalidArgumentError:
            have = ", ".join(repr(t.config.name) for t in self.tables()[:10]) or "none"
            raise TableNotFoundError(f"no table {table!r}; tables are: {have}") from None

    def described(self, table: str, table_id: int | None = None) -> Described:
        """Return what a table is."""
        request = pb.GetTableRequest(table=table, table_id=table_id)
        return described_of(
            self.transport.call("GetTable", request, pb.TableReply.FromString).table
        )

    def tables(self) -> list[Described]:
        """Return what all tables are, by name."""
        reply = self.transport.call(
            "ListTables", pb.ListTablesRequest(), pb.ListTablesReply.FromString
        )
        return [described_of(table) for table in reply.tables]

    def drop_table(self, table: str) -> int:
        """Forget a table; return the command number."""
        return self._acknowledged("DropTable", pb.DropTableRequest(table=table)).context.command

    def grow(self, table: str, table_id: int, rows: int) -> Acknowledged:
        """Let a table have more rows."""
        request = pb.GrowTableRequest(table=table, table_id=table_id, rows=rows)
        reply = self._acknowledged("GrowTable", request)
        return Acknowledged(reply.context.command, reply.t)

    def set_learning_rate(self, table: str, table_id: int, value: float) -> None:
        """Set the rate of updates that give none."""
        rate = fp32_scalar(value, f"table {table!r}: learning_rate")
        request = pb.SetLearningRateRequest(table=table, table_id=table_id, learning_rate=rate)
        self._acknowledged("SetLearningRate", request)

    def digest(self, table: str, table_id: int, timeout_s: float | None) -> str:
        """Return a table's digest."""
        request = pb.GetDigestRequest(table=table, table_id=table_id)
        reply = self.transport.call(
            "GetDigest", request, pb.GetDigestReply.FromString, timeout_s=timeout_s
        )
        return reply.digest

    def _acknowledged(self, name: str, request: Any) -> pb.AcknowledgedReply:
        return self.transport.call(name, request, pb.AcknowledgedReply.FromString, mutates=True)

    # Frequencies

    def document(self, content: bytes, what: str) -> tuple[Message, pb.Array]:
        """Return a message that holds a file's bytes, and their place in it.

        Raises
        ------
        InvalidArgumentError : there are more than a call may have.
        """
        if len(content) > self.limits.call_bytes_max:
            raise InvalidArgumentError(
                f"expected {what} of at most {self.limits.call_bytes_max} bytes "
                f"(limits.call_bytes_max), found {len(content)}"
            )
        message = Message()
        return message, messages.document(message, content)

    def export_profile(self, source: str) -> bytes:
        """Return a profile as the bytes of its file."""
        if source not in messages.SOURCES:
            raise InvalidArgumentError(
                f'expected source to be "counted" or "imported", found {source!r}'
            )
        request = pb.ExportProfileRequest(source=messages.SOURCES[source])
        received = self._document("ExportProfile", request)
        reply = pb.ProfileReply.Header.FromString(received.header)
        self.transport.knows(reply.context)
        return _document_of(received, reply.profile)

    def import_profile(self, content: bytes, rename: Mapping[str, str]) -> None:
        """Have the server take a profile, whole or not at all."""
        message, place = self.document(content, "a profile")
        header = pb.ImportProfileRequest.Header(profile=place, rename=rename)
        received = self.transport.bulk("ImportProfile", header, message, reply_bytes=0)
        reply = pb.ProfileImportedReply.Header.FromString(received.header)
        self.transport.knows(reply.context)

    def pin_hot_set(self, content: bytes, timeout_s: float | None) -> HotSetFacts:
        """Have the server pin a hot set."""
        message, place = self.document(content, "a hot set")
        header = pb.PinHotSetRequest.Header(hot_set=place)
        received = self.transport.bulk(
            "PinHotSet", header, message, reply_bytes=0, timeout_s=timeout_s
        )
        reply = pb.HotSetPinnedReply.Header.FromString(received.header)
        self.transport.knows(reply.context)
        return _hot_set_facts(reply.hot_set)

    def unpin_hot_set(self) -> HotSetFacts:
        """Have the server pin no hot set any more."""
        reply = self.transport.call(
            "UnpinHotSet", pb.UnpinHotSetRequest(), pb.UnpinHotSetReply.FromString
        )
        return _hot_set_facts(reply.hot_set)

    def hot_set(self) -> bytes | None:
        """Return the pinned hot set as the bytes of its file; None: none is pinned."""
        received = self._document("GetHotSet", pb.GetHotSetRequest())
        reply = pb.HotSetReply.Header.FromString(received.header)
        self.transport.knows(reply.context)
        return _document_of(received, reply.hot_set) if reply.HasField("hot_set") else None

    def _document(self, name: str, request: Any) -> Received:
        return self.transport.messages(name, request, _only)

    def clear_counts(self) -> None:
        """Have the server count from nothing again."""
        self.transport.call("ClearCounts", pb.ClearCountsRequest(), pb.ClearCountsReply.FromString)

    def warm_cache(
        self,
        share: float,
        told: Callable[[pb.WarmCacheReply], None],
        timeout_s: float | None,
    ) -> None:
        """Have the server warm its cache, and be told how far it is."""
        request = pb.WarmCacheRequest(share=share)
        self.transport.follow(
            "WarmCache", request, pb.WarmCacheReply.FromString, told, timeout_s=timeout_s
        )

    # Durability

    def flush(self, table: str = "", table_id: int | None = None) -> int:
        """Write dirty rows to the log; return how many."""
        request = pb.FlushRequest(table=table, table_id=table_id)
        return self.transport.call("Flush", request, pb.FlushReply.FromString).rows

    def checkpoint(
        self, label: str, metadata: Mapping[str, Any], timeout_s: float | None
    ) -> Checkpoint:
        """Make everything durable and keep it under a label."""
        if not _is_printable(label):
            raise InvalidArgumentError(f"expected a label of printable characters, found {label!r}")
        request = pb.CheckpointRequest(label=label, metadata_json=_metadata_json(metadata))
        reply = self.transport.call(
            "Checkpoint", request, pb.CheckpointReply.FromString, mutates=True, timeout_s=timeout_s
        )
        return _checkpoint_of(reply.checkpoint)

    def checkpoints(self) -> list[Checkpoint]:
        """Return the kept checkpoints, oldest first."""
        reply = self.transport.call(
            "ListCheckpoints", pb.ListCheckpointsRequest(), pb.ListCheckpointsReply.FromString
        )
        return [_checkpoint_of(checkpoint) for checkpoint in reply.checkpoints]

    def restore(self, label: str) -> int:
        """Go back to a kept checkpoint; return the command number."""
        if not _is_printable(label):
            kept = ", ".join(repr(c.label) for c in self.checkpoints()) or "none"
            raise CheckpointNotFoundError(f"no checkpoint {label!r} is kept; kept are: {kept}")
        context = self._acknowledged("Restore", pb.RestoreRequest(label=label)).context
        self.transport.changed_epoch(context.epoch)
        return context.command


def _only(received: Iterator[Received]) -> Received:
    (message,) = received
    return message


def _document_of(received: Received, place: pb.Array) -> bytes:
    return array_of(received, place, np.uint8, 1, "the reply").tobytes()


def _hot_set_facts(told: pb.HotSetDescription) -> HotSetFacts:
    return HotSetFacts(told.version, told.rows, told.bytes, told.pinned_rows)


def _is_printable(label: Any) -> bool:
    return isinstance(label, str) and label.isprintable()  # half a surrogate pair is not


def _metadata_json(metadata: Any) -> str:
    if not isinstance(metadata, dict) or not all(isinstance(k, str) for k in metadata):
        raise InvalidArgumentError(
            f"expected metadata to be a dict with string keys, found {metadata!r}"
        )
    try:
        return json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidArgumentError(f"expected metadata that JSON can hold: {exc}") from exc


def _checkpoint_of(message: pb.CheckpointDescription) -> Checkpoint:
    entries = []
    for description in message.tables:
        table = described_of(description)
        rate = table.config.optimizer.learning_rate
        entries.append(
            TableEntry(table.table_id, table.config.identity(), table.config.rows, rate, table.t)
        )
    state = State(command=message.command, tables=tuple(entries))
    return Checkpoint(message.label, json.loads(message.metadata_json), state)
