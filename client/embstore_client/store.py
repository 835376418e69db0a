"""A server's store: the verbs of `embstore.Store`, each one call."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from numpy.typing import ArrayLike

from embstore.arrays import Rows, as_out, as_pair, as_ranks
from embstore.config import Initializer, Limits, Optimizer, TableConfig
from embstore.errors import DeadlineError, InvalidArgumentError, TableNotFoundError
from embstore.feed.run import Run
from embstore.frequency.hotset import HotSet
from embstore.frequency.profile import Profile
from embstore.results import AcknowledgedUpdate, Checkpoint, HotSetFacts, TableFacts
from embstore_client import messages
from embstore_client.calls import Calls
from embstore_client.sessions import RemoteSessions
from embstore_client.shares import Sums, UniqueKeys, mapping, some_of
from embstore_client.table import RemoteTable
from embstore_client.transport import Transport, checked_seconds
from embstore_proto.codec import Message
from embstore_proto.configs import Described
from embstore_proto.v1 import embstore_pb2 as pb

CONNECT_TIMEOUT_S = 10.0
"""Long enough for a server that is just starting, short enough to be told of a wrong address."""

CALL_TIMEOUT_S = 60.0


def connect(
    address: str,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    label: str = "",
    tls_ca: str | os.PathLike[str] | None = None,
) -> "RemoteStore":
    """Connect to a server and return its store.

    Parameters
    ----------
    address : "host:port" of the server's gRPC
    timeout_s : deadline of every call, its further attempts included
    connect_timeout_s : how long to wait for the server to be there
    label : shown in the server's log of slow calls
    tls_ca : file of the certificates to trust; None: no TLS

    Raises
    ------
    DeadlineError : no server answered.
    InvalidArgumentError : a bad argument.
    """
    if not isinstance(address, str) or ":" not in address:
        raise InvalidArgumentError(f'expected an address "host:port", found {address!r}')
    checked_seconds(timeout_s, "timeout_s")
    checked_seconds(connect_timeout_s, "connect_timeout_s")
    if not isinstance(label, str) or not ((label.isascii() and label.isprintable()) or not label):
        raise InvalidArgumentError(f"expected a label of printable ASCII, found {label!r}")
    credentials = None
    if tls_ca is not None:
        credentials = grpc.ssl_channel_credentials(Path(tls_ca).read_bytes())
    transport = Transport(address, timeout_s=timeout_s, label=label, credentials=credentials)
    calls = Calls(transport)
    try:
        info = calls.server_info(connect_timeout_s)
    except DeadlineError as exc:
        transport.close()
        raise DeadlineError(
            f"no embstore server was ready at {address} within {connect_timeout_s:g} s; is "
            f"`embstore serve` running there? {exc}"
        ) from exc
    except BaseException:
        transport.close()
        raise
    return RemoteStore(calls, info)


class RemoteStore:
    """A server's store. Any thread. A context manager that closes the connection.

    Closing ends the connection and not the server's store. A call that raises has changed nothing,
    but for DeadlineError and OutcomeUnknownError, after which nobody can tell: read t.
    """

    def __init__(self, calls: Calls, info: pb.GetServerInfoReply) -> None:
        calls.limits = _limits(info)
        self._calls = calls
        self._seen: dict[str, Described] = {}  # as tables last were: ids and dims do not change
        self._sessions = RemoteSessions(calls)
        self.store_id = info.context.store_id

    def __enter__(self) -> "RemoteStore":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<embstore_client.RemoteStore at {self._calls.transport.address}>"

    def close(self) -> None:
        """End the connection. Calls that run are cut off. Closing twice is harmless."""
        self._calls.transport.close()

    # Tables

    def create_table(
        self,
        name: str,
        *,
        dim: int,
        rows: int,
        optimizer: Optimizer,
        initializer: Initializer,
        seed: int | None = None,
    ) -> RemoteTable:
        """Make a table, or return the one that was made so before; see `Store.create_table`."""
        config = TableConfig.checked(
            name, dim=dim, rows=rows, optimizer=optimizer, initializer=initializer, seed=seed
        )
        return self._table(self._calls.create_table(config))

    def table(self, name: str) -> RemoteTable:
        """Return a table by name, or raise TableNotFoundError."""
        return self._table(self._calls.described(self._calls.name(name)))

    def _table(self, described: Described) -> RemoteTable:
        self._seen[described.config.name] = described
        return RemoteTable(self._calls, described)

    def tables(self) -> list[str]:
        """Return the names of all tables, sorted."""
        return [described.config.name for described in self._calls.tables()]

    def table_facts(self) -> dict[str, TableFacts]:
        """Return rows, t and learning rate of all tables, by name, as one call."""
        return {
            found.config.name: TableFacts(
                found.config.rows, found.t, found.config.optimizer.learning_rate
            )
            for found in self._calls.tables()
        }

    def drop_table(self, name: str) -> int:
        """Forget a table and its rows; return the command number."""
        return self._calls.drop_table(self._calls.name(name))

    # Several tables in one call

    def lookup(
        self,
        keys: Mapping[str, ArrayLike],
        *,
        admit: bool = True,
        out: Mapping[str, Rows] | None = None,
        counts: Mapping[str, ArrayLike] | None = None,
    ) -> dict[str, Rows]:
        """Return the rows of several tables, {name: (n, dim) float32}; see `Store.lookup`."""
        named = self._named(keys, "keys")
        outs, counted = some_of(out, "out", named), some_of(counts, "counts", named)
        once = {name: UniqueKeys.of(k, name, counted.get(name)) for name, k in named.items()}
        for name, o in outs.items():
            as_out(o, (once[name].call_count, self._fitting_dim(name, o)), name)
        try:
            found = self._rows(once, admit)
        except TableNotFoundError:  # another may have the name since it was last seen
            for name in once:
                self._seen.pop(name, None)
            found = self._rows(once, admit)
        return {
            name: o.spread(rows, outs.get(name), name)
            for (name, o), rows in zip(once.items(), found, strict=True)
        }

    def _named(self, value: Any, what: str) -> dict[str, Any]:
        parts = mapping(value, what).items()
        return {self._calls.name(name): part for name, part in parts}

    def _rows(self, once: dict[str, UniqueKeys], admit: bool) -> list[Rows]:
        tables = {name: self._described(name) for name in once}
        ids = {name: table.table_id for name, table in tables.items()}
        dims = {name: table.config.dim for name, table in tables.items()}
        return self._calls.lookup(once, ids, dims, admit)

    def _described(self, name: str) -> Described:
        described = self._seen.get(name)
        if described is None:
            described = self._seen[name] = self._calls.described(name)
        return described

    def update(
        self,
        gradients: Mapping[str, tuple[ArrayLike, ArrayLike]],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: str = "refuse",
    ) -> AcknowledgedUpdate:
        """Apply one update to several tables, all or none; see `Store.update`."""
        message = Message()
        shares = self._sums(gradients)
        self._calls.check_bytes(sum(s.call_bytes for s in shares.values()))
        header = pb.UpdateRequest.Header(
            tables=messages.gradients(message, shares, {}),
            options=messages.options(learning_rate, gradient_scale, on_nonfinite),
        )
        return _acknowledged(self._calls.write("Update", header, message))

    def update_ranks(
        self,
        ranks: Sequence[Mapping[str, tuple[ArrayLike, ArrayLike]]],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: str = "refuse",
    ) -> AcknowledgedUpdate:
        """Apply one update from several ranks, added in rank order; see `Store.update_ranks`."""
        message = Message()
        shares = [self._sums(rank) for rank in as_ranks(ranks)]
        self._calls.check_bytes(sum(s.call_bytes for rank in shares for s in rank.values()))
        header = pb.UpdateRanksRequest.Header(
            ranks=messages.ranks(message, shares, {}),
            options=messages.options(learning_rate, gradient_scale, on_nonfinite),
        )
        return _acknowledged(self._calls.write("UpdateRanks", header, message))

    def _sums(self, gradients: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> dict[str, Sums]:
        shares = {}
        for name, pair in self._named(gradients, "gradients").items():
            keys, rows = as_pair(pair, name)
            shares[name] = Sums.of(keys, rows, self._fitting_dim(name, rows), name)
        return shares

    def _fitting_dim(self, name: str, rows: ArrayLike) -> int:
        """Return the table's dim, asked for again if the array does not fit the one last seen."""
        shape: tuple[int, ...] = getattr(rows, "shape", ())
        seen = self._seen.get(name)
        if seen is not None and len(shape) == 2 and shape[1] == seen.config.dim:
            return shape[1]
        self._seen.pop(name, None)
        return self._described(name).config.dim

    # Look-ahead

    @property
    def sessions(self) -> RemoteSessions:
        """Look-ahead sessions by their verbs; `session` is the way for a trainer."""
        return self._sessions

    def session(
        self,
        tables: Sequence[str],
        *,
        lookahead: int = 16,
        name: str | None = None,
        rank: int = 0,
        world_size: int = 1,
        planner: str = "per_step",
        shared: bool = False,
        lease_ms: int = 10_000,
        rank_timeout_ms: int = 60_000,
        wait_s: float | None = None,
    ) -> Run:
        """Return a run of steps that are announced ahead; see `Store.session`.

        Its rows come while the step before computes. Once the server has restarted, the run's next
        call raises SessionExpiredError or OutcomeUnknownError: with a `name`, another run goes on
        behind the `last_step` of the server's last commit.
        """
        return Run(
            self._sessions,
            tables,
            lookahead=lookahead,
            name=name,
            rank=rank,
            world_size=world_size,
            planner=planner,
            shared=shared,
            lease_ms=lease_ms,
            rank_timeout_ms=rank_timeout_ms,
            wait_s=wait_s,
        )

    # Frequencies

    def export_profile(self, *, source: str = "counted") -> Profile:
        """Return what the server has counted, or was given to import; see `Store.export_profile`.

        Deadline, as of the calls below: the connection's; a profile of many rows takes a while.
        """
        return Profile.from_bytes(self._calls.export_profile(source), "the server's profile")

    def import_profile(self, profile: Profile, *, rename: Mapping[str, str] | None = None) -> None:
        """Have the server rank rows by a profile; see `Store.import_profile`."""
        if not isinstance(profile, Profile):
            raise InvalidArgumentError(f"expected a Profile, found {type(profile).__name__}")
        names = {} if rename is None else rename
        if not isinstance(names, Mapping) or not all(
            isinstance(name, str) and name.isprintable() for pair in names.items() for name in pair
        ):
            raise InvalidArgumentError(f"expected rename to map names to names, found {rename!r}")
        self._calls.import_profile(profile.to_bytes(), names)

    def warm_cache(
        self,
        share: float = 0.7,
        *,
        progress: Callable[[int, int], None] | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Fill a share of the cache with the most frequent rows; see `Store.warm_cache`.

        The server goes on when this call has ended, by `timeout_s` (in place of the connection's)
        or by an error that `progress` raises; the same call again joins it.
        """
        rows = 0

        def told(reply: pb.WarmCacheReply) -> None:
            nonlocal rows
            rows = reply.rows
            if progress is not None:
                progress(reply.rows, reply.of)

        self._calls.warm_cache(_share(share), told, timeout_s)
        return rows

    def pin_hot_set(self, hot_set: HotSet | None, *, timeout_s: float | None = None) -> HotSetFacts:
        """Keep the rows of a hot set in the server's cache; see `Store.pin_hot_set`.

        `timeout_s` in place of the connection's. The server goes on when it has passed.
        """
        if hot_set is None:
            return self._calls.unpin_hot_set()
        if not isinstance(hot_set, HotSet):
            raise InvalidArgumentError(f"expected a HotSet or None, found {type(hot_set).__name__}")
        return self._calls.pin_hot_set(hot_set.to_bytes(), timeout_s)

    def hot_set(self) -> HotSet | None:
        """Return the hot set that is pinned, or None."""
        content = self._calls.hot_set()
        return None if content is None else HotSet.from_bytes(content, "the server's hot set")

    def clear_counts(self) -> None:
        """Forget what the server has counted; see `Store.clear_counts`."""
        self._calls.clear_counts()

    # Durability

    def checkpoint(
        self,
        label: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Checkpoint:
        """Make everything durable and keep it under `label`; see `Store.checkpoint`.

        `timeout_s` in place of the connection's: the dirty rows are written before it answers.
        """
        return self._calls.checkpoint(label, {} if metadata is None else metadata, timeout_s)

    def checkpoints(self) -> list[Checkpoint]:
        """Return the kept checkpoints, oldest first."""
        return self._calls.checkpoints()

    def restore(self, label: str) -> int:
        """Go back to a kept checkpoint; return the command number. For all clients."""
        return self._calls.restore(label)

    def flush(self) -> int:
        """Write all dirty rows to the log and return how many; durable is only a checkpoint."""
        return self._calls.flush()

    # Looking

    @property
    def command(self) -> int:
        """The number of the last acknowledged mutating command, of any client. One call."""
        return self.server_info().context.command

    @property
    def epoch(self) -> int:
        """Grows with every restore. One call."""
        return self.server_info().context.epoch

    def server_info(self) -> pb.GetServerInfoReply:
        """Return what the server says of itself: version, device, limits."""
        return self._calls.server_info()

    @property
    def device(self) -> str:
        """What keeps and computes the rows there: "cpu" or "cuda:N". One call."""
        return self.server_info().device

    @property
    def device_facts(self) -> dict[str, Any]:
        """The device's model, memory and versions; see `Store.device_facts`. One call."""
        told = self.server_info().device_info
        return {field.name: value for field, value in told.ListFields()}

    @property
    def limits(self) -> Limits:
        """The named bounds that the server holds calls to, as it told them at `connect`.

        Those of its work in the background are its own affair, and have their defaults here.
        """
        return self._calls.limits

    def resize_cache(self, cache_bytes: int) -> None:
        """Give the server's cache another budget; see `Store.resize_cache`."""
        if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, int) or cache_bytes < 1:
            raise InvalidArgumentError(
                f"expected cache_bytes to be an integer >= 1, found {cache_bytes!r}"
            )
        self._calls.resize_cache(cache_bytes)

    def stats(self) -> dict[str, Any]:
        """Return what the store is and did; see `Store.stats`."""
        return self._calls.stats()

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant of the server's cache or storage does not hold."""
        self._calls.check_integrity()


def _limits(info: pb.GetServerInfoReply) -> Limits:
    told = info.limits
    return Limits(
        call_bytes_max=told.call_bytes_max,
        tables_max=told.tables_max,
        log_rows_max=told.log_rows_max,
        metadata_bytes_max=told.metadata_bytes_max,
    )


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgumentError(f"expected share to be a number, found {value!r}")
    return float(value)


def _acknowledged(header: pb.BulkAcknowledgedReply.Header) -> AcknowledgedUpdate:
    return AcknowledgedUpdate(header.context.command, dict(header.t), header.skipped)
