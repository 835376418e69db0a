"""The verbs of the wire as Python calls: requests made, replies taken apart.

Between the object model (store, table) and the transport. Any thread.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from embstore_proto.codec import Message, array_of
from embstore_proto.configs import Described, described_of, message_of
from embstore_proto.v1 import embstore_pb2 as pb

from embstore.arrays import Rows, fp32_scalar
from embstore.config import TableConfig
from embstore.results import Acknowledged, Checkpoint, State, TableEntry
from embstore_client import messages
from embstore_client.shares import UniqueKeys
from embstore_client.transport import Transport


class Calls:
    """One connection's calls."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    # Bulk

    def lookup(
        self, keys: Mapping[str, UniqueKeys], ids: Mapping[str, int], admit: bool, reply_bytes: int
    ) -> list[Rows]:
        """Return the rows of each table's unique keys."""
        message = Message()
        header = messages.lookup(message, keys, ids, bool(admit))
        return self.rows("Lookup", header, message, reply_bytes)

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
            "GetServerInfo", pb.GetServerInfoRequest(), pb.GetServerInfoReply, timeout_s=timeout_s
        )

    def stats(self, table: str = "", table_id: int | None = None) -> dict[str, Any]:
        """Return the figures of a table, or of the store."""
        request = pb.GetStatsRequest(table=table, table_id=table_id)
        stats: dict[str, Any] = json.loads(
            self.transport.call("GetStats", request, pb.GetStatsReply).json
        )
        return stats

    def resize_cache(self, cache_bytes: int) -> None:
        """Change the cache's budget."""
        request = pb.ResizeCacheRequest(cache_bytes=cache_bytes)
        self.transport.call("ResizeCache", request, pb.ResizeCacheReply)

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant of the server's store does not hold."""
        reply = self.transport.call(
            "CheckIntegrity", pb.CheckIntegrityRequest(), pb.CheckIntegrityReply
        )
        assert not reply.violation, reply.violation

    # Tables

    def create_table(self, config: TableConfig) -> Described:
        """Make a table, or return the one that was made so before."""
        request = pb.CreateTableRequest(config=message_of(config))
        reply = self.transport.call("CreateTable", request, pb.TableReply, mutates=True)
        return described_of(reply.table)

    def described(self, table: str, table_id: int | None = None) -> Described:
        """Return what a table is."""
        request = pb.GetTableRequest(table=table, table_id=table_id)
        return described_of(self.transport.call("GetTable", request, pb.TableReply).table)

    def tables(self) -> list[Described]:
        """Return what all tables are, by name."""
        reply = self.transport.call("ListTables", pb.ListTablesRequest(), pb.ListTablesReply)
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
        reply = self.transport.call("GetDigest", request, pb.GetDigestReply, timeout_s=timeout_s)
        return reply.digest

    def _acknowledged(self, name: str, request: Any) -> pb.AcknowledgedReply:
        return self.transport.call(name, request, pb.AcknowledgedReply, mutates=True)

    # Durability

    def flush(self, table: str = "", table_id: int | None = None) -> int:
        """Write dirty rows to the log; return how many."""
        request = pb.FlushRequest(table=table, table_id=table_id)
        return self.transport.call("Flush", request, pb.FlushReply).rows

    def checkpoint(
        self, label: str, metadata: Mapping[str, Any], timeout_s: float | None
    ) -> Checkpoint:
        """Make everything durable and keep it under a label."""
        request = pb.CheckpointRequest(label=label, metadata_json=json.dumps(metadata))
        reply = self.transport.call(
            "Checkpoint", request, pb.CheckpointReply, mutates=True, timeout_s=timeout_s
        )
        return _checkpoint_of(reply.checkpoint)

    def checkpoints(self) -> list[Checkpoint]:
        """Return the kept checkpoints, oldest first."""
        reply = self.transport.call(
            "ListCheckpoints", pb.ListCheckpointsRequest(), pb.ListCheckpointsReply
        )
        return [_checkpoint_of(checkpoint) for checkpoint in reply.checkpoints]

    def restore(self, label: str) -> int:
        """Go back to a kept checkpoint; return the command number."""
        return self._acknowledged("Restore", pb.RestoreRequest(label=label)).context.command


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
