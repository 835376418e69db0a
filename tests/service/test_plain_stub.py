"""The wire as the .proto file says it: a client of generated code alone can do everything.

Each bulk verb, unary and streamed, with arrays at any offset, is compared with the reference.
"""

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

import embstore
from embstore.config import RowWiseAdagrad, Uniform
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_proto.v1.embstore_pb2_grpc import EmbstoreStub
from tests.reference import ReferenceStore
from tests.service.plain import INVALID, Payload, Streamed, Unary, array_of, refused
from tests.serving import Server

SERVICE = pb.DESCRIPTOR.services_by_name["Embstore"]
DIM, ROWS = 5, 100
CONFIG = pb.TableConfig(
    name="a",
    dim=DIM,
    rows=ROWS,
    rowwise_adagrad=pb.RowWiseAdagrad(learning_rate=0.1),
    uniform=pb.Uniform(low=-1.0, high=1.0),
)
KEYS, OFFSETS = [7, 3, 7, 99], [0, 1, 1, 4]
FAR = b"\xfa\x7f\x01x"
"""Field 2047, of one byte: none of the messages has it."""


@pytest.fixture
def channel(tmp_path):
    def open_store():
        return embstore.open(tmp_path, cache_bytes=1 << 20)

    with Server(open_store, tmp_path) as server, grpc.insecure_channel(server.address) as channel:
        yield channel


@pytest.fixture
def stub(channel):
    stub = EmbstoreStub(channel)
    stub.CreateTable(pb.CreateTableRequest(config=CONFIG))
    return stub


@pytest.fixture
def reference():
    reference = ReferenceStore()
    initializer = Uniform(-1.0, 1.0)
    optimizer = RowWiseAdagrad(0.1)
    reference.create_table("a", dim=DIM, rows=ROWS, optimizer=optimizer, initializer=initializer)
    return reference


def grads(*shape):
    return np.random.default_rng(7).standard_normal(shape, np.float32)


# Control verbs


def answers(stub):
    """Call every control verb; yield its name and its reply."""
    for name, request in (
        ("GetServerInfo", pb.GetServerInfoRequest()),
        ("CreateTable", pb.CreateTableRequest(config=CONFIG)),
        ("GetTable", pb.GetTableRequest(table="a")),
        ("ListTables", pb.ListTablesRequest()),
        ("GrowTable", pb.GrowTableRequest(table="a", rows=200)),
        ("SetLearningRate", pb.SetLearningRateRequest(table="a", learning_rate=0.5)),
        ("GetDigest", pb.GetDigestRequest(table="a")),
        ("GetLeaves", pb.GetLeavesRequest(table="a")),
        ("GetStats", pb.GetStatsRequest()),
        ("ResizeCache", pb.ResizeCacheRequest(cache_bytes=2 << 20)),
        ("SetPolicy", pb.SetPolicyRequest(policy="lfu")),
        ("CheckIntegrity", pb.CheckIntegrityRequest()),
        ("Flush", pb.FlushRequest()),
        ("Checkpoint", pb.CheckpointRequest(label="c", metadata_json='{"step": 1}')),
        ("ListCheckpoints", pb.ListCheckpointsRequest()),
        ("SetRetention", pb.SetRetentionRequest(label="c", retention=pb.RETENTION_PROTECTED)),
        ("Restore", pb.RestoreRequest(label="c")),
        ("DropTable", pb.DropTableRequest(table="a")),
    ):
        yield name, getattr(stub, name)(request)


def test_every_control_verb_is_answered(stub):
    replies = dict(answers(stub))
    commands = {name: reply.context.command for name, reply in replies.items()}
    assert commands["CreateTable"] == 2
    assert (commands["GrowTable"], commands["SetLearningRate"]) == (3, 4)
    assert (commands["Restore"], commands["DropTable"]) == (5, 6)
    assert replies["Restore"].context.epoch == replies["Flush"].context.epoch + 1
    assert replies["GetTable"].table.config.rowwise_adagrad.epsilon == 1e-8
    assert replies["ListTables"].tables[0].state_dim == 1
    assert replies["CheckIntegrity"].violation == ""
    assert replies["ListCheckpoints"].checkpoints[0].metadata_json == '{"step": 1}'
    assert len({reply.context.store_id for reply in replies.values()}) == 1


# Bulk verbs


@pytest.fixture(params=["unary", "pieces of 7", "one piece"])
def bulk(request, stub):
    made = {"unary": Unary(stub), "pieces of 7": Streamed(stub, 7)}
    return made.get(request.param) or Streamed(stub, 1 << 20)


GAPS = pytest.mark.parametrize("gap", [0, 1, 3, 8])


def keys_of(payload, keys=KEYS):
    return pb.TableKeys(table="a", keys=payload.add(keys, "<i8"))


def gradients_of(payload, rows, keys=KEYS):
    found = pb.TableGradients(table="a", gradients=payload.add(rows, "<f4"))
    found.keys.CopyFrom(payload.add(keys, "<i8"))
    return found


def bags_of(payload):
    return pb.Bags(offsets=payload.add(OFFSETS, "<i8"), mode=pb.POOLING_MODE_MEAN)


def pooled_of(payload, rows=None):
    """Return keys of bags; with rows, gradients of them."""
    found = pb.PooledKeys(table="a") if rows is None else pb.PooledGradients(table="a")
    if rows is not None:
        found.gradients.CopyFrom(payload.add(rows, "<f4"))
    found.keys.CopyFrom(payload.add(KEYS, "<i8"))
    found.bags.CopyFrom(bags_of(payload))
    return found


def write_everything(bulk, reference, gap):
    """Do each writing verb on both; yield the replies."""
    table, rows, bags = reference.table("a"), grads(4, DIM), grads(3, DIM)
    payload = Payload(gap)
    header = pb.UpdateRequest.Header(tables=[gradients_of(payload, rows)])
    yield bulk.call("Update", header, payload.content)
    table.update(KEYS, rows)
    payload = Payload(gap)
    header = pb.UpdatePooledRequest.Header(
        tables=[pooled_of(payload, bags)],
        options=pb.UpdateOptions(learning_rate=0.25, gradient_scale=0.5),
    )
    yield bulk.call("UpdatePooled", header, payload.content)
    table.update_pooled(KEYS, OFFSETS, bags, "mean", learning_rate=0.25, gradient_scale=0.5)
    payload = Payload(gap)
    ranks = [pb.UpdateRanksRequest.Rank(tables=[gradients_of(payload, r)]) for r in (rows, -rows)]
    yield bulk.call("UpdateRanks", pb.UpdateRanksRequest.Header(ranks=ranks), payload.content)
    reference.update_ranks([{"a": (KEYS, rows)}, {"a": (KEYS, -rows)}])
    payload = Payload(gap)
    header = pb.AssignRequest.Header(keys=keys_of(payload, [1, 2]))
    header.rows.CopyFrom(payload.add(rows[:2], "<f4"))
    yield bulk.call("Assign", header, payload.content)
    table.assign([1, 2], rows[:2])
    payload = Payload(gap)
    header = pb.PutRowsRequest.Header(keys=keys_of(payload, [3]), add_t=4)
    header.weights.CopyFrom(payload.add(rows[:1], "<f4"))
    header.state.CopyFrom(payload.add([[2.0]], "<f4"))
    yield bulk.call("PutRows", header, payload.content)
    table.put_rows([3], rows[:1], np.full((1, 1), 2.0, np.float32), 4)


@GAPS
def test_writing_verbs_leave_what_the_reference_has(stub, bulk, reference, gap):
    for reply in write_everything(bulk, reference, gap):
        header = reply.header
        assert header.context.command > 1
        assert header.t["a"] > 0
        assert not header.skipped
        assert not reply.payload
    digest = stub.GetDigest(pb.GetDigestRequest(table="a"))
    assert (digest.digest, digest.t) == (reference.table("a").digest(), reference.table("a").t)


@GAPS
def test_reading_verbs_return_what_the_reference_does(bulk, reference, gap):
    list(write_everything(bulk, reference, gap))
    table, payload = reference.table("a"), Payload(gap)
    named = keys_of(payload)
    named.counts.CopyFrom(payload.add([1, 2, 3, 4], "<u4"))
    header = pb.LookupRequest.Header(tables=[named], trace=pb.Trace(stages=True))
    reply = bulk.call("Lookup", header, payload.content)
    assert array_of(reply, reply.header.tables[0].rows).tobytes() == table.lookup(KEYS).tobytes()
    assert reply.header.tables[0].t == table.t
    assert reply.header.stage_seconds
    payload = Payload(gap)
    header = pb.LookupPooledRequest.Header(tables=[pooled_of(payload)])
    reply = bulk.call("LookupPooled", header, payload.content)
    pooled = table.lookup_pooled(KEYS, OFFSETS, "mean")
    assert array_of(reply, reply.header.tables[0].rows).tobytes() == pooled.tobytes()
    payload = Payload(gap)
    header = pb.ReadRowsRequest.Header(keys=keys_of(payload))
    reply = bulk.call("ReadRows", header, payload.content)
    weights, state = table.read_rows(KEYS)
    assert array_of(reply, reply.header.tables[0].rows).tobytes() == weights.tobytes()
    assert array_of(reply, reply.header.tables[0].state).tobytes() == state.tobytes()


# What is refused


def test_a_refusal_names_its_class(stub):
    found = refused(lambda: stub.GetTable(pb.GetTableRequest(table="b")))
    assert found == ("NOT_FOUND", "TableNotFoundError")


UNKNOWN = {
    "of a request": lambda s: s.ListTables(pb.ListTablesRequest.FromString(FAR)),
    "of a part": lambda s: s.CreateTable(
        pb.CreateTableRequest(config=pb.TableConfig.FromString(CONFIG.SerializeToString() + FAR))
    ),
    "of a bulk message": lambda s: s.Lookup(pb.LookupRequest.FromString(FAR)),
    "of a bulk header": lambda s: s.Lookup(
        pb.LookupRequest(header=pb.LookupRequest.Header.FromString(FAR))
    ),
    "of a chunk": lambda s: list(s.LookupStream(iter([pb.Chunk.FromString(FAR)]))),
}


@pytest.mark.parametrize("call", UNKNOWN.values(), ids=UNKNOWN)
def test_fields_that_the_server_does_not_know_are_refused(stub, call):
    assert refused(lambda: call(stub)) == INVALID


# Beside the verbs


def test_reflection_lists_the_service_and_its_methods(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {SERVICE.full_name, "grpc.health.v1.Health"} <= set(database.get_services())
    services = database.FindFileContainingSymbol(SERVICE.full_name).service
    (found,) = (service for service in services if service.name == SERVICE.name)
    assert [method.name for method in found.method] == [m.name for m in SERVICE.methods]


@pytest.mark.parametrize("service", ["", SERVICE.full_name])
def test_health_is_serving(channel, service):
    health = health_pb2_grpc.HealthStub(channel)
    reply = health.Check(health_pb2.HealthCheckRequest(service=service))
    assert reply.status == health_pb2.HealthCheckResponse.SERVING
