"""A server that is sent mutated messages, a model that judges what it made of them, and a witness.

Each method has its **rounds**. A round begins with the same small tables, made anew, beside a
session where the method is of one. Then so many mutations of valid messages of this one method are
sent at once, over a few connections, and all have to be answered: by an error of the tree that
blames nobody's disk, device or program, or by a result. A mutation may well be valid. What it did
is known, because the replies have the command numbers: the model of tests/commands is told the
acknowledged commands in their order, and numbers, rows, t and digests have to be its own. So
nothing was applied that was not acknowledged, either.

Of a session's steps and of its life nobody knows the order; there the witness has to do: a table
that no message names, whose digest stays, and whose rows a client reads after each round.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import grpc
import numpy as np

from embstore import commands as c
from embstore.config import Adam, Sgd, TableConfig, Uniform
from embstore.errors import (
    InvalidArgumentError,
    OutcomeUnknownError,
    SessionExpiredError,
    UnauthenticatedError,
)
from embstore.results import Place
from embstore.values import same
from embstore_client import connect
from embstore_client.narrow_shares import Narrow
from embstore_proto import frame
from embstore_proto.envelope import Origin
from embstore_proto.narrow import WIRE_DTYPES
from embstore_proto.received import Assembly, split
from embstore_proto.status import ANSWERS, ERROR_METADATA
from embstore_proto.v1 import embstore_pb2 as pb
from embstore_proto.verbs import VERBS, Arrived, Verb
from tests.commands.lists import WAITING, Author
from tests.commands.model import Model
from tests.service.access.tenants import token_of, write_tokens
from tests.service.faults.logged import LoggedServer
from tests.service.faults.mutating import Mutator
from tests.service.faults.served import PATIENCE_S

METHODS = {
    f"{service.full_name}/{method.name}": method
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""By the path of the wire: whatever the .proto file has."""

CONNECTIONS, AT_ONCE = 4, 32
CALL_S = 0.5
"""The server's deadline of calls that may wait for others: there is nobody else."""
EMPTY = 0.02
"""Of calls of one message: they send none."""
CACHE_BYTES = 4 << 20
ROWS, DIM = 40, 8
TABLES = [
    TableConfig.checked("a", dim=3, rows=ROWS, optimizer=Sgd(0.1), initializer=Uniform(-1, 1)),
    TableConfig.checked("b", dim=DIM, rows=ROWS, optimizer=Adam(0.01), initializer=Uniform(-1, 1)),
    TableConfig.checked("part/c", dim=5, rows=ROWS, optimizer=Sgd(0.1), initializer=Uniform(0, 1)),
]
WITNESS = "a-table-that-no-message-names"
SESSION, MEMBER = "train", "a member of train, rank 0"

ERRORS = {
    (kind.__name__, answer.code)
    for kind, answer in ANSWERS.items()
    if answer.code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS)
    and kind.__name__ != "StoreClosedError"
}
"""How a message may be refused."""


SHOWN = {
    "operator": token_of("operator"),
    "dashboard": token_of("dashboard"),
    "": None,
    "nobody": "operator.of-another-secret",
}
"""The tokens that calls show to a server that asks for one, by whose they are; none, and a wrong
one."""
SHARES = 0.7, 0.15, 0.1, 0.05
"""Of all calls; to check a wrong token takes a while."""


class Reply(NamedTuple):
    """How a call ended."""

    shown: str
    """Whose token it showed."""
    sent: list[bytes]
    received: list[bytes]
    code: grpc.StatusCode
    error: str
    """The class of the tree that the status names; "": it names none."""
    text: str


class MutatedServer(LoggedServer):
    """A server that is sent mutations, and what they have said of where they come from."""

    def __init__(self, path: Path, *, has_tokens: bool) -> None:
        self.backups = path / "backups"
        self.clients: set[str] = set()
        self.kept: dict[str, Any] = {}
        """What models know of checkpoints: some outlive the rounds that made them."""
        self.tokens = SHOWN if has_tokens else {"": None}
        tokens = ("--tokens", str(write_tokens(path / "tokens"))) if has_tokens else ()
        super().__init__(
            path / "store",
            *("--cache-bytes", str(CACHE_BYTES), "--admin", "off", *tokens),
            *("--call-timeout-s", str(CALL_S), "--backup-within", str(self.backups)),
        )


class OwnUpdate:
    """A client of a server, a model that follows what was acknowledged, and the witness."""

    def __init__(self, address: str, token: str | None) -> None:
        self.store = connect(address, timeout_s=PATIENCE_S, token=token)
        if WITNESS not in self.store.tables():
            table = self.store.create_table(
                WITNESS, dim=DIM, rows=ROWS, optimizer=Adam(0.01), initializer=Uniform(-1, 1)
            )
            table.update(np.arange(9), np.ones((9, DIM), np.float32))
        self._witness = self.store.table(WITNESS).digest(), self._witness_rows()
        self._model = Model()

    def _witness_rows(self) -> Any:
        return self.store.table(WITNESS).lookup(np.arange(ROWS))

    def _do(self, command: c.Command[Any]) -> None:
        """Have a command done, and the model follow."""
        self._model.follow(command, self._executed(command))

    def _executed(self, command: c.Command[Any]) -> Any:
        return known(lambda: self.store.executor.execute(command))

    def _begin_anew(self) -> None:
        """Take away what there is beside the witness, and make the tables."""
        for session in self._executed(c.GetStats())["sessions"]["open"]:
            with suppress(SessionExpiredError):  # its lease, from a mutation, may just have run out
                self._executed(c.EndSession(session["name"]))
        for table in self._executed(c.ListTables()):
            if table.config.name != WITNESS:
                self._executed(c.DropTable(table.config.name))
        self._executed(c.UnpinHotSet())
        self._executed(c.ResizeCache(CACHE_BYTES))
        self._model = Model()
        self._model.store.command_number = self.store.command
        for config in TABLES:
            self._do(c.CreateTable(config))

    def _judge(self) -> None:
        """Compare what there is with what was acknowledged."""
        known(self.store.tables)
        assert self.store.command == self._model.store.command_number
        names = [name for name in self.store.tables() if name != WITNESS]
        assert {n: self.store.table(n).digest() for n in names} == self._model.digests()

    def _look(self) -> None:
        """Be a client that has nothing to do with all this."""
        digest, rows = self._witness
        assert same(known(self._witness_rows), rows)
        assert self.store.table(WITNESS).digest() == digest


class Rounds(OwnUpdate):
    """The rounds of one method after the other."""

    def __init__(self, server: MutatedServer, rng: np.random.Generator) -> None:
        super().__init__(server.address, server.tokens.get("operator"))
        self.server = server
        self._rng = rng
        self._calls = _Calls(server)
        self._begin(c.Announce)
        self._others = [self._message(verb, self._seed(verb)) for verb in VERBS.values()]

    # The state that a round begins with

    def _begin(self, kind: Any) -> None:
        """Make the tables, and what else commands of a kind need, anew."""
        for made in self._executed(c.ListCheckpoints()):
            if made.label not in self.server.kept:  # of a mutation; in a folder it would stay
                self._executed(c.SetRetention(made.label, "dropped"))
        self._begin_anew()
        self._model.kept = self.server.kept
        for config in TABLES:
            rows = self._rng.random((ROWS, config.dim), np.float32)
            self._do(c.Assign(c.TableKeys(config.name, None, np.arange(ROWS)), rows))
        if kind in (c.Checkpoint, c.SetRetention, c.Restore, c.Backup, c.ListCheckpoints):
            for _ in range(3):  # as many as are kept
                self._do(c.Checkpoint(uuid4().hex, {}))
            for made in self._executed(c.ListCheckpoints()):
                if made.protected:  # by a round before: no older one could be restored
                    self._do(c.SetRetention(made.label, "routine"))
            self._do(c.ListCheckpoints())
        if kind in (c.ReadScan, c.CloseScan):
            for config in TABLES:
                self._do(c.OpenScan(f"a scan of table {config.name}", config.name))
        if "member" in _names(kind) or kind is c.EndSession:
            self._open(kind)

    def _open(self, kind: Any) -> None:
        tables = tuple(config.name for config in TABLES)
        waits = "none" if kind is c.ReadStep else "late"
        opening = c.OpenSession(SESSION, tables, **WAITING, waits=waits)
        result = self._executed(opening)
        self._model.places[SESSION] = Place(result.last_step)
        self._model.follow(opening, result)
        self._do(c.JoinSession(SESSION, 0, MEMBER))
        if "step" in _names(kind):
            steps = [result.last_step + n for n in range(1, 9)]
            keys = tuple(c.StepTable(name, np.arange(5)) for name in tables)
            self._do(c.Announce(MEMBER, tuple(c.StepKeys(step, keys) for step in steps)))

    # Messages

    def _seed(self, verb: Verb) -> c.Command[Any]:
        command = Author(int(self._rng.integers(1 << 30)), self._model).write(verb.command)
        if isinstance(command, c.Backup):
            return replace(command, destination=str(self.server.backups / "one"))
        return command

    def _message(self, verb: Verb, command: c.Command[Any], origin: Origin | None = None) -> bytes:
        dtype = str(self._rng.choice(WIRE_DTYPES))
        try:
            sent = Narrow(dtype).less(command)[0] if dtype in frame.NARROW else command
        except InvalidArgumentError:  # a gradient that is too large
            sent = command
        outgoing = verb.outgoing(sent, rows_dtype=dtype)
        header = outgoing.serialised(origin)
        return header if outgoing.message is None else outgoing.message.joined(header)

    def _origin(self, verb: Verb, epoch: int) -> Origin | None:
        """Return an origin that no other call has; or none, where none is needed."""
        if verb.command.retry is not c.Retry.WINDOW or self._rng.random() < 0.5:
            return None
        return Origin(self._rng.bytes(8).hex(), 1, epoch=epoch)

    def _mutations(self, path: str, count: int) -> list[list[bytes]]:
        method, mutator = METHODS[path], Mutator(self._rng, self._others)
        if path.startswith("embstore.v1.Standbys"):
            return [mutator.messages(self._follower()) for _ in range(count)]
        verb = VERBS[method.name.removesuffix("Stream")]
        found: list[list[bytes]] = []
        epoch = self.store.epoch  # asked once: it stays until the mutations are sent
        while len(found) < count:
            seed = self._message(verb, self._seed(verb), self._origin(verb, epoch))
            if method.input_type.name == "Chunk":
                messages = mutator.stream(seed)
            else:
                messages = [] if self._rng.random() < EMPTY else [mutator.message(seed)]
            is_remembered = verb.command.retry is c.Retry.WINDOW
            if not (is_remembered and self._is_answered_again(path, messages)):
                found.append(messages)
        return found

    def _is_answered_again(self, path: str, messages: list[bytes]) -> bool:
        """Tell whether a mutation says that it comes from a client that was there already: its
        answer may be another's."""
        try:
            origin = _arrived(path, messages).origin
        except (InvalidArgumentError, IndexError):
            return False
        clients = self.server.clients
        before = len(clients)
        clients |= {origin.client_id} if origin else set()
        return origin is not None and len(clients) == before

    def _follower(self) -> list[bytes]:
        """Return what a standby says. No promotion of this store: it would be the last write."""
        store_id, command = self.store.store_id, self.store.command
        other = pb.Promotion(id="x", epoch=2, command=1, first_number=9)
        place = pb.FollowRequest(durable=pb.LogPlace(segment=1, offset=64))
        first = [
            pb.Follower(store_id=store_id, command=command),
            pb.Follower(store_id=store_id, command=command, anew=True),
            pb.Follower(store_id="ab" * 16, command=1, promotions=[other], fences=True),
        ][int(self._rng.integers(3))]
        wanted = pb.FollowRequest(wanted=pb.Wanted(paths=["CATALOGUE", "log/1"]))
        said = [pb.FollowRequest(follower=first), *([wanted] if first.anew else []), place, place]
        return [request.SerializeToString() for request in said]

    def close(self) -> None:
        """End the connections."""
        self._calls.close()
        self.store.close()

    # Calls

    def round(self, path: str, count: int) -> list[Reply]:
        """Send so many mutations to a method; judge what became of them."""
        verb = VERBS.get(METHODS[path].name.removesuffix("Stream"))
        kind: Any = verb.command if verb else c.Promote
        self._begin(kind)
        mutations = self._mutations(path, count)
        waits = verb is None or bool(_names(kind) & {"step", "share"})
        names = list(self.server.tokens)
        shares = SHARES if len(names) > 1 else None
        shown = [str(name) for name in self._rng.choice(names, count, p=shares)]
        replies = self._calls.replies(path, mutations, shown, None if waits else PATIENCE_S)
        for reply in replies:
            assert reply.code is grpc.StatusCode.OK or (reply.error, reply.code) in ERRORS, reply
            if len(names) > 1 and reply.shown in ("", "nobody"):
                assert reply.error == UnauthenticatedError.__name__, reply
        if verb is not None and not verb.is_streamed and kind not in _WITHOUT_AN_ORDER:
            self._follow(path, [reply for reply in replies if reply.code is grpc.StatusCode.OK])
        if kind is c.OpenScan:
            self._close_scans(path, replies)
        self._look()
        return replies

    def _close_scans(self, path: str, replies: Sequence[Reply]) -> None:
        """Close what mutations opened; only its owner can. Else the next ones find no room."""
        closing = VERBS[c.CloseScan.__name__]
        for reply in replies:
            if reply.code is grpc.StatusCode.OK:
                opened = _arrived(path, reply.sent).command
                sent = [self._message(closing, c.CloseScan(opened.scan, opened.table))]
                at = path.replace(c.OpenScan.__name__, c.CloseScan.__name__)
                (closed,) = self._calls.replies(at, [sent], [reply.shown], PATIENCE_S)
                assert closed.code is grpc.StatusCode.OK, closed

    def _follow(self, path: str, replies: Sequence[Reply]) -> None:
        """Have the model follow what was acknowledged; it finds numbers, rows and t as they are."""
        method = METHODS[path]
        verb = VERBS[method.name.removesuffix("Stream")]
        done = []
        for reply in replies:
            answer = _joined(method.output_type, reply.received)
            value, context = verb.answer(split(answer) if verb.has_bulk_reply else answer)
            if verb.command is c.ListTables:
                value = tuple(table for table in value if table.config.name != WITNESS)
            done.append((context.command, _arrived(path, reply.sent), value))
        for _, arrived, result in sorted(done, key=lambda one: one[0]):
            self._model.rows_dtype = arrived.rows_dtype
            self._model.follow(arrived.command, result)
        self._judge()


_WITHOUT_AN_ORDER = {
    kind
    for name, kind in c.COMMANDS.items()
    if "Session" in name or {f.name for f in fields(kind)} & {"step", "steps"}
} - {c.PutStepRows}
"""Commands of a session that leave no number behind, or take turns by themselves."""


T = TypeVar("T")


def known(call: Callable[[], T]) -> T:
    """Return what a call returns, when a mutation may have restored: its client is told once."""
    try:
        return call()
    except OutcomeUnknownError:
        return call()


def _names(kind: Any) -> set[str]:
    return {field.name for field in fields(kind)}


def _arrived(path: str, messages: Sequence[bytes]) -> Arrived:
    """Return what the server understands."""
    method = METHODS[path]
    return VERBS[method.name.removesuffix("Stream")].arrived(_joined(method.input_type, messages))


def _joined(kind: Any, messages: Sequence[bytes]) -> Any:
    if kind.name != "Chunk":
        return messages[0]
    assembly = Assembly(1 << 30)
    for chunk in messages:
        assembly.add(chunk)
    return assembly.whole()


class _Calls:
    """Connections, and threads that call over them. Not by gRPC's asyncio: where the server answers
    before it has been sent everything, that client invents a status of its own."""

    def __init__(self, server: MutatedServer) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        address = server.address
        self._channels = [grpc.insecure_channel(address, options) for _ in range(CONNECTIONS)]
        self._metadata = {
            name: [("authorization", f"Bearer {token}")] if token else []
            for name, token in server.tokens.items()
        }
        self._threads = ThreadPoolExecutor(AT_ONCE)

    def close(self) -> None:
        """End the connections."""
        for channel in self._channels:
            channel.close()
        self._threads.shutdown()

    def replies(
        self,
        path: str,
        requests: Sequence[list[bytes]],
        shown: Sequence[str],
        timeout_s: float | None,
    ) -> list[Reply]:
        """Send requests to a method, each with somebody's token; return how it was answered."""
        ones = [channel.unary_stream(f"/{path}") for channel in self._channels]
        many = [channel.stream_stream(f"/{path}") for channel in self._channels]

        def one(place: int, sent: list[bytes], name: str) -> Reply:
            at = place % CONNECTIONS
            begin = (ones[at], sent[0]) if len(sent) == 1 else (many[at], iter(sent))
            metadata, received = self._metadata[name], []
            call = begin[0](begin[1], timeout=timeout_s, metadata=metadata)
            try:
                received.extend(call)
            except grpc.RpcError as exc:
                error = dict(exc.trailing_metadata() or ()).get(ERROR_METADATA, "")
                return Reply(name, sent, received, exc.code(), str(error), exc.details() or "")
            return Reply(name, sent, received, call.code(), "", "")

        return list(
            self._threads.map(one, range(len(requests)), requests, shown, timeout=PATIENCE_S)
        )
