"""One table of a server: the verbs of `embstore.Table`, each one call."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from embstore.arrays import Rows, as_keys, as_offsets, as_out, as_pair, as_ranks, as_rows
from embstore.config import Initializer, Optimizer, TableConfig
from embstore.errors import InvalidArgumentError
from embstore.results import Acknowledged
from embstore_client import messages
from embstore_client.calls import Calls
from embstore_client.shares import Sums, UniqueKeys
from embstore_proto.codec import Message
from embstore_proto.configs import Described
from embstore_proto.v1 import embstore_pb2 as pb

_T_MAX = 2**64 - 1


class RemoteTable:
    """One table of a server. Any thread.

    Keys, rows and gradients as in `embstore.Table`; a call that raises has changed nothing, but for
    DeadlineError and OutcomeUnknownError, after which nobody can tell. The handle means this
    table, and never another that gets its name.

    A property is one call, of half a millisecond: in a loop, keep what it says in a variable. What
    can never change is asked for as well, so that a handle of a dropped table always says so.
    """

    def __init__(self, calls: Calls, described: Described) -> None:
        self._calls = calls
        self._config = described.config
        self._id = described.table_id
        self._dim = described.config.dim
        self.name = described.config.name

    def __repr__(self) -> str:
        return f"<embstore_client.RemoteTable {self.name!r}>"

    # What it is

    @property
    def table_id(self) -> int:
        """The number that this table has in the store, and no other ever gets."""
        return self._id

    @property
    def config(self) -> TableConfig:
        """The whole configuration, with today's rows and learning rate."""
        return self._described().config

    @property
    def dim(self) -> int:
        """Elements of a row."""
        return self._described().config.dim

    @property
    def rows(self) -> int:
        """Keys are below this; `grow` raises it."""
        return self._described().config.rows

    @property
    def t(self) -> int:
        """Updates that named the table and were applied."""
        return self._described().t

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, with today's learning rate."""
        return self._described().config.optimizer

    @property
    def initializer(self) -> Initializer:
        """What a row holds that was never written."""
        return self._described().config.initializer

    @property
    def seed(self) -> int:
        """The seed of the initial rows."""
        return self._described().config.seed

    @property
    def learning_rate(self) -> float:
        """The rate of updates that give none; setting it is a mutating command."""
        return self._described().config.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._calls.set_learning_rate(self.name, self._id, value)

    def _described(self) -> Described:
        return self._calls.described(self.name, self._id)

    # Reading

    def lookup(
        self,
        keys: ArrayLike,
        admit: bool = True,
        *,
        out: Rows | None = None,
        counts: ArrayLike | None = None,
    ) -> Rows:
        """Return the rows of `keys`, (n, dim) float32; see `embstore.Table.lookup`."""
        once = UniqueKeys.of(keys, self.name, counts)
        if out is not None:
            as_out(out, (once.call_count, self._dim), self.name)
        (rows,) = self._calls.lookup(
            {self.name: once}, {self.name: self._id}, {self.name: self._dim}, admit
        )
        return once.spread(rows, out, self.name)

    def lookup_pooled(
        self,
        keys: ArrayLike,
        offsets: ArrayLike,
        mode: str = "sum",
        weights: ArrayLike | None = None,
        *,
        admit: bool = True,
        out: Rows | None = None,
    ) -> Rows:
        """Return the sum or mean of each bag's rows, pooled by the server, (bags, dim) float32.

        See `embstore.Table.lookup_pooled`.
        """
        message = Message()
        checked = as_keys(keys, self.name)
        header = pb.LookupPooledRequest.Header(
            keys=messages.table_keys(message, self.name, self._id, checked),
            bags=self._bags(message, offsets, mode, weights, len(checked)),
            admit=admit,
        )
        bag_count = header.bags.offsets.shape[0] - 1
        if out is not None:
            out = as_out(out, (bag_count, self._dim), self.name)
        size = bag_count * 4 * self._dim
        (rows,) = self._calls.rows("LookupPooled", header, message, size)
        return _into(rows, out)

    def read_rows(
        self, keys: ArrayLike, *, out: tuple[Rows, Rows] | None = None
    ) -> tuple[Rows, Rows]:
        """Return weights (n, dim) and state (n, state_dim), leaving no trace in the cache."""
        once = UniqueKeys.of(keys, self.name)
        state_dim = self._config.state_dim
        self._calls.check_bytes(once.call_bytes(self._dim + state_dim))
        weights, state = (None, None) if out is None else as_pair(out, self.name)
        if out is not None:
            weights = as_out(weights, (once.call_count, self._dim), self.name)
            state = as_out(state, (once.call_count, state_dim), self.name)
        message = Message()
        header = pb.ReadRowsRequest.Header(
            keys=messages.table_keys(message, self.name, self._id, once.keys)
        )
        size = len(once.keys) * 4 * (self._dim + state_dim)
        found = self._calls.rows("ReadRows", header, message, size)
        return (
            once.spread(found[0], weights, self.name),
            once.spread(found[1], state, self.name),
        )

    # Writing

    def update(
        self,
        keys: ArrayLike,
        grads: ArrayLike,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: str = "refuse",
    ) -> Acknowledged:
        """Sum the gradients by key here, and let the server apply the optimizer once to each.

        See `embstore.Table.update`.
        """
        message = Message()
        share = {self.name: Sums.of(keys, grads, self._dim, self.name)}
        self._calls.check_bytes(share[self.name].call_bytes)
        header = pb.UpdateRequest.Header(
            tables=messages.gradients(message, share, {self.name: self._id}),
            options=messages.options(learning_rate, gradient_scale, on_nonfinite),
        )
        return self._acknowledged(self._calls.write("Update", header, message))

    def update_pooled(
        self,
        keys: ArrayLike,
        offsets: ArrayLike,
        grads: ArrayLike,
        mode: str = "sum",
        weights: ArrayLike | None = None,
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: str = "refuse",
    ) -> Acknowledged:
        """Apply the gradients of bags, which the server spreads over their keys.

        See `embstore.Table.update_pooled`.
        """
        message = Message()
        checked = as_keys(keys, self.name)
        bags = self._bags(message, offsets, mode, weights, len(checked))
        rows = as_rows(grads, (bags.offsets.shape[0] - 1, self._dim), self.name, "gradients")
        header = pb.UpdatePooledRequest.Header(
            gradients=pb.TableGradients(
                table=self.name,
                table_id=self._id,
                keys=message.add(checked),
                gradients=message.add(rows),
            ),
            bags=bags,
            options=messages.options(learning_rate, gradient_scale, on_nonfinite),
        )
        return self._acknowledged(self._calls.write("UpdatePooled", header, message))

    def update_ranks(
        self,
        ranks: Sequence[tuple[ArrayLike, ArrayLike]],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: str = "refuse",
    ) -> Acknowledged:
        """Apply one update from several ranks; see `embstore.Table.update_ranks`."""
        pairs = [as_pair(rank, self.name) for rank in as_ranks(ranks, self.name)]
        sums = [Sums.of(*pair, self._dim, self.name) for pair in pairs]
        self._calls.check_bytes(sum(s.call_bytes for s in sums))
        message = Message()
        header = pb.UpdateRanksRequest.Header(
            ranks=messages.ranks(message, [{self.name: s} for s in sums], {self.name: self._id}),
            options=messages.options(learning_rate, gradient_scale, on_nonfinite),
        )
        return self._acknowledged(self._calls.write("UpdateRanks", header, message))

    def assign(self, keys: ArrayLike, rows: ArrayLike) -> Acknowledged:
        """Set rows, (n, dim) float32; of repeated keys the last wins. See `Table.assign`."""
        message = Message()
        checked = as_keys(keys, self.name)
        weights = as_rows(rows, (len(checked), self._dim), self.name, "rows")
        header = pb.AssignRequest.Header(
            keys=messages.table_keys(message, self.name, self._id, checked),
            rows=message.add(weights),
        )
        return self._acknowledged(self._calls.write("Assign", header, message))

    def put_rows(
        self, keys: ArrayLike, weights: ArrayLike, state: ArrayLike, add_t: int
    ) -> Acknowledged:
        """Set weights (n, dim) and optimizer state (n, state_dim), and add `add_t` to t."""
        message = Message()
        checked = as_keys(keys, self.name)
        count = len(checked)
        new_weights = as_rows(weights, (count, self._dim), self.name, "weights")
        new_state = as_rows(state, (count, self._config.state_dim), self.name, "state")
        header = pb.PutRowsRequest.Header(
            keys=messages.table_keys(message, self.name, self._id, checked),
            weights=message.add(new_weights),
            state=message.add(new_state),
            add_t=self._checked_count(add_t, "add_t"),
        )
        return self._acknowledged(self._calls.write("PutRows", header, message))

    def grow(self, rows: int) -> Acknowledged:
        """Let the table have `rows` rows, no fewer than now."""
        return self._calls.grow(self.name, self._id, self._checked_count(rows, "rows"))

    # Looking after it

    def flush(self) -> int:
        """Write dirty rows to the log and return how many; durable is only a checkpoint."""
        return self._calls.flush(self.name, self._id)

    def digest(self, *, timeout_s: float | None = None) -> str:
        """Return the digest of the whole content, 64 hexadecimal digits.

        About a second for each GB that has changed since the last one; `timeout_s` in place of the
        connection's.
        """
        return self._calls.digest(self.name, self._id, timeout_s)

    def stats(self) -> dict[str, Any]:
        """Return the table's figures; see `embstore.Table.stats`."""
        return self._calls.stats(self.name, self._id)

    def _bags(
        self,
        message: Message,
        offsets: ArrayLike,
        mode: str,
        weights: ArrayLike | None,
        key_count: int,
    ) -> pb.Bags:
        bounds = as_offsets(offsets, key_count, self.name)
        factors = None
        if weights is not None:
            factors = as_rows(weights, (key_count,), self.name, "weights")
        return messages.bags(message, bounds, mode, factors, self.name)

    def _checked_count(self, value: Any, what: str) -> int:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | np.integer)
            or not 0 <= value <= _T_MAX
        ):
            raise InvalidArgumentError(
                f"table {self.name!r}: expected {what} to be an integer >= 0, found {value!r}"
            )
        return int(value)

    def _acknowledged(self, header: pb.BulkAcknowledgedReply.Header) -> Acknowledged:
        t = header.t[self.name] if self.name in header.t else 0
        return Acknowledged(header.context.command, t, header.skipped)


def _into(rows: Rows, out: Rows | None) -> Rows:
    if out is None:
        return rows
    out[:] = rows
    return out
