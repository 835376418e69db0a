"""The verbs without arrays: each takes its message apart and returns what the engine thread does.

`work` returns the reply but for its context, which the border fills in. Those of look-ahead
sessions are in `embstore_server.sessions`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from embstore.errors import InvalidArgumentError
from embstore.results import Checkpoint
from embstore.store import Store
from embstore.table import Table
from embstore_proto.configs import Described, config_of, description_of
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_server.bulk import id_of, named


@dataclass(frozen=True)
class Verb:
    """A control verb: its messages, and how a request becomes work."""

    request: type[Any]
    reply: type[Any]
    prepare: Callable[[Any], Callable[[Store], Any]]
    mutates: bool = False
    beside: bool = False
    """Any thread may do the work: it runs beside the engine thread."""


def _described(table: Table) -> pb.TableDescription:
    return description_of(Described(table.config, table.table_id, table.t))


# The process


def _get_stats(request: pb.GetStatsRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.GetStatsReply:
        if request.table:
            stats = named(store, request.table, id_of(request)).stats()
        else:
            stats = store.stats()
        return pb.GetStatsReply(json=json.dumps(stats))

    return work


def _resize_cache(request: pb.ResizeCacheRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.ResizeCacheReply:
        store.resize_cache(request.cache_bytes)
        return pb.ResizeCacheReply()

    return work


def _check_integrity(request: pb.CheckIntegrityRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.CheckIntegrityReply:
        try:
            store.check_integrity()
        except AssertionError as exc:
            return pb.CheckIntegrityReply(violation=str(exc) or "an invariant does not hold")
        return pb.CheckIntegrityReply()

    return work


# Tables


def _create_table(request: pb.CreateTableRequest) -> Callable[[Store], Any]:
    config = config_of(request.config)

    def work(store: Store) -> pb.TableReply:
        table = store.create_table(
            config.name,
            dim=config.dim,
            rows=config.rows,
            optimizer=config.optimizer,
            initializer=config.initializer,
            seed=config.seed,
        )
        return pb.TableReply(table=_described(table))

    return work


def _get_table(request: pb.GetTableRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.TableReply:
        return pb.TableReply(table=_described(named(store, request.table, id_of(request))))

    return work


def _list_tables(request: pb.ListTablesRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.ListTablesReply:
        return pb.ListTablesReply(tables=[_described(store.table(n)) for n in store.tables()])

    return work


def _drop_table(request: pb.DropTableRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.AcknowledgedReply:
        named(store, request.table, id_of(request))
        store.drop_table(request.table)
        return pb.AcknowledgedReply()

    return work


def _grow_table(request: pb.GrowTableRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.AcknowledgedReply:
        done = named(store, request.table, id_of(request)).grow(request.rows)
        return pb.AcknowledgedReply(t=done.t)

    return work


def _set_learning_rate(request: pb.SetLearningRateRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.AcknowledgedReply:
        table = named(store, request.table, id_of(request))
        table.learning_rate = request.learning_rate
        return pb.AcknowledgedReply(t=table.t)

    return work


def _get_digest(request: pb.GetDigestRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.GetDigestReply:
        table = named(store, request.table, id_of(request))
        return pb.GetDigestReply(digest=table.digest(), t=table.t)

    return work


# Durability


def _flush(request: pb.FlushRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.FlushReply:
        if request.table:
            return pb.FlushReply(rows=named(store, request.table, id_of(request)).flush())
        return pb.FlushReply(rows=store.flush())

    return work


def _metadata(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError) as exc:
        raise InvalidArgumentError(f"expected metadata_json to be a JSON object: {exc}") from exc


def checkpoint_message(checkpoint: Checkpoint) -> pb.CheckpointDescription:
    """Return a kept checkpoint as a message."""
    return pb.CheckpointDescription(
        label=checkpoint.label,
        metadata_json=json.dumps(checkpoint.metadata),
        command=checkpoint.state.command,
        tables=[
            description_of(Described(entry.config(), entry.table_id, entry.t))
            for entry in checkpoint.state.tables
        ],
    )


def _checkpoint(request: pb.CheckpointRequest) -> Callable[[Store], Any]:
    metadata = _metadata(request.metadata_json)

    def work(store: Store) -> pb.CheckpointReply:
        made = store.checkpoint(request.label, metadata)
        return pb.CheckpointReply(checkpoint=checkpoint_message(made))

    return work


def _list_checkpoints(request: pb.ListCheckpointsRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.ListCheckpointsReply:
        return pb.ListCheckpointsReply(
            checkpoints=[checkpoint_message(c) for c in store.checkpoints()]
        )

    return work


def _restore(request: pb.RestoreRequest) -> Callable[[Store], Any]:
    def work(store: Store) -> pb.AcknowledgedReply:
        store.restore(request.label)
        return pb.AcknowledgedReply()

    return work


VERBS: dict[str, Verb] = {
    "GetStats": Verb(pb.GetStatsRequest, pb.GetStatsReply, _get_stats),
    "ResizeCache": Verb(pb.ResizeCacheRequest, pb.ResizeCacheReply, _resize_cache),
    "CheckIntegrity": Verb(pb.CheckIntegrityRequest, pb.CheckIntegrityReply, _check_integrity),
    "CreateTable": Verb(pb.CreateTableRequest, pb.TableReply, _create_table, mutates=True),
    "GetTable": Verb(pb.GetTableRequest, pb.TableReply, _get_table),
    "ListTables": Verb(pb.ListTablesRequest, pb.ListTablesReply, _list_tables),
    "DropTable": Verb(pb.DropTableRequest, pb.AcknowledgedReply, _drop_table, mutates=True),
    "GrowTable": Verb(pb.GrowTableRequest, pb.AcknowledgedReply, _grow_table, mutates=True),
    "SetLearningRate": Verb(
        pb.SetLearningRateRequest, pb.AcknowledgedReply, _set_learning_rate, mutates=True
    ),
    "GetDigest": Verb(pb.GetDigestRequest, pb.GetDigestReply, _get_digest),
    "Flush": Verb(pb.FlushRequest, pb.FlushReply, _flush),
    "Checkpoint": Verb(pb.CheckpointRequest, pb.CheckpointReply, _checkpoint, mutates=True),
    "ListCheckpoints": Verb(pb.ListCheckpointsRequest, pb.ListCheckpointsReply, _list_checkpoints),
    "Restore": Verb(pb.RestoreRequest, pb.AcknowledgedReply, _restore, mutates=True),
}
"""By the name in the .proto file; GetServerInfo needs no engine thread, and is the border's own."""
