"""One table of a store."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from embstore import commands as c
from embstore.arithmetic import LEAF_RECORD
from embstore.arrays import Rows
from embstore.commands import OnNonfinite, Pooling
from embstore.errors import OutcomeUnknownError
from embstore.handles import parts
from embstore.handles.scan import Scan
from embstore.handles.table_properties import TableProperties
from embstore.results import Acknowledged, AcknowledgedUpdate, Deleted, RowsRead


class Table(TableProperties):
    """One table of a store. Any thread can call the methods.

    Keys are int64 in [0, rows), in any order, repeated or not. Rows and gradients are float32
    (float16 is widened). Arrays passed as `out` are filled and returned. The handle stands for this
    table, and not for another table that is later created with the same name.

    Each property queries the store: for a server's table this is a call of half a millisecond. In a
    loop, keep the value in a variable.
    """

    # Reading

    def _keys(self, keys: Any, counts: Any = None) -> c.TableKeys:
        return c.TableKeys(self.name, self.table_id, keys, counts)

    def lookup(
        self,
        keys: ArrayLike,
        admit: bool = True,
        *,
        out: Any = None,
        counts: ArrayLike | None = None,
    ) -> Rows:
        """Return the rows of `keys`, (n, dim) float32.

        Parameters
        ----------
        keys : (n,) int64. If the store's rows are on a GPU, and the store is embedded or its server
            shares the GPU's memory, `keys` and `out` can also be arrays in the GPU's memory (of
            CuPy, PyTorch or Numba: objects with `__cuda_array_interface__`). Without `out`, an
            embedded store refuses such keys, and a server returns a CuPy array in that memory
        admit : whether missed rows enter the cache; False leaves the cache unchanged
        out : (n, dim) float32 to fill and return: an array, or a tensor of PyTorch on the host
        counts : (n,) integers, 1 to 2**32 - 1, the number of accesses that each key stands for,
            from a caller that has de-duplicated its keys; None: each key stands for one access. The
            counts only add to `accesses` and `access_hits` of the store's stats.

        Raises
        ------
        InvalidArgumentError : keys or counts are not as described, or the call is too large.
        """
        command = c.Lookup((self._keys(keys, counts),), admit)
        return self._rows(command, out)

    def _rows(self, command: c.Command[RowsRead], out: Any) -> Rows:
        """Return the rows of a lookup: `out`, an array or a tensor, if it was given."""
        read = self._executor.execute(command, out=None if out is None else [out])
        return read.tables[0].rows if out is None else cast(Rows, out)

    def lookup_pooled(
        self,
        keys: ArrayLike,
        offsets: ArrayLike,
        mode: Pooling = "sum",
        weights: ArrayLike | None = None,
        *,
        admit: bool = True,
        out: Any = None,
    ) -> Rows:
        """Return the sum or mean of each bag's rows, (bags, dim) float32; an empty bag gives zeros.

        Parameters
        ----------
        keys : (n,) int64, bag after bag; `keys` and `out` can be in the device's memory, as in
            `lookup`
        offsets : (bags + 1,) int64, from 0 to n: bag b is keys[offsets[b]:offsets[b + 1]]
        weights : (n,) float32, finite; with mode "sum" only

        Raises
        ------
        InvalidArgumentError : an argument has another shape, dtype or range.
        """
        bags: Any = c.Bags(offsets, mode, weights)  # type: ignore[arg-type]
        part: Any = c.PooledKeys(self.name, self.table_id, keys, bags)  # type: ignore[arg-type]
        return self._rows(c.LookupPooled((part,), admit), out)

    def read_rows(
        self, keys: ArrayLike, *, out: tuple[Any, Any] | None = None
    ) -> tuple[Rows, Rows]:
        """Return weights (n, dim) and state (n, state_dim), without any change to the cache.

        `out` is a pair of arrays of these shapes, to fill and return. Keys can be in the device's
        memory, as in `lookup`; the rows are always on the host.
        """
        outs = None if out is None else parts.arrays(out, 2, self.name)
        read = self._executor.execute(c.ReadRows(self._keys(keys)), out=outs).tables[0]
        return (read.rows, cast(Rows, read.state)) if outs is None else (outs[0], outs[1])

    def scan(
        self,
        label: str | None = None,
        since: str | None = None,
        *,
        batch_rows: int | None = None,
        with_state: bool = False,
        timeout_s: float | None = None,
    ) -> Scan:
        """Return an iterator by ascending key over written rows, as they were after one command.

        The scan omits rows that were never written: such a row has the initializer's value for its
        key. Other calls are executed meanwhile, and the cache does not change.

        Parameters
        ----------
        label : a kept checkpoint to read; None: the store commits, and the scan reads that commit
        since : a kept checkpoint; only rows that were written after it are read, even if their
            value did not change. The state at `since` becomes the current state if these rows are
            set, and the keys from `Scan.deleted` are deleted
        batch_rows : most rows of a batch; None: the rows that fit in 8 MiB
        with_state : whether batches contain the optimizer's state too
        timeout_s : timeout in seconds of the commit that the scan may need

        Raises
        ------
        CheckpointNotFoundError : a label is not kept, or no longer kept.
        TableNotFoundError : the table did not exist at one of the checkpoints.
        InvalidArgumentError : `since` is newer than `label`.
        """
        return Scan(
            self._executor,
            self.name,
            self.table_id,
            label=label,
            since=since,
            batch_rows=batch_rows,
            with_state=with_state,
            timeout_s=timeout_s,
        )

    # Writing

    def _acknowledged(self, done: AcknowledgedUpdate) -> Acknowledged:
        return Acknowledged(done.command, done.t.get(self.name, 0), done.skipped)

    def update(
        self,
        keys: ArrayLike,
        grads: ArrayLike,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> Acknowledged:
        """Sum the gradients by key and apply the optimizer once to each key's row.

        Parameters
        ----------
        keys : (n,) int64; can also be in the memory of the store's GPU, see `lookup`
        grads : (n, dim) float32; can also be in that memory
        learning_rate : rate for this update only; None: the table's rate
        gradient_scale : factor of every sum, finite and >= 0
        on_nonfinite : effect of a sum that is not finite, or whose square is not (docs/contract.md,
            rule 9): "refuse" raises; "skip" acknowledges the update without applying it

        Raises
        ------
        InvalidArgumentError : wrong shape, dtype or range; or a sum that is refused.
        CapacityError : the disk has no space for the rows that would leave the cache.
        """
        part: Any = c.TableGradients(self.name, self.table_id, keys, grads)  # type: ignore[arg-type]
        options = c.UpdateOptions(learning_rate, gradient_scale, on_nonfinite)
        return self._acknowledged(self._executor.execute(c.Update((part,), options)))

    def update_pooled(
        self,
        keys: ArrayLike,
        offsets: ArrayLike,
        grads: ArrayLike,
        mode: Pooling = "sum",
        weights: ArrayLike | None = None,
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> Acknowledged:
        """Apply the gradients of bags: the backward pass of `lookup_pooled`, then `update`.

        Parameters
        ----------
        grads : (bags, dim) float32; can be in the device's memory
        others : as in `lookup_pooled` and `update`
        """
        bags: Any = c.Bags(offsets, mode, weights)  # type: ignore[arg-type]
        given: tuple[Any, Any] = keys, grads
        part = c.PooledGradients(self.name, self.table_id, *given, bags)
        options = c.UpdateOptions(learning_rate, gradient_scale, on_nonfinite)
        return self._acknowledged(self._executor.execute(c.UpdatePooled((part,), options)))

    def update_ranks(
        self,
        ranks: Sequence[tuple[ArrayLike, ArrayLike]],
        *,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: OnNonfinite = "refuse",
    ) -> Acknowledged:
        """Apply one update from several ranks, with (keys, gradients) of each rank.

        The gradients are added in rank order (docs/contract.md, rule 6). The result differs in its
        last bits from one update with all keys together.
        """
        pairs = [parts.arrays(rank, 2, self.name) for rank in parts.ranks(ranks, self.name)]
        shares = [c.TableGradients(self.name, self.table_id, *pair) for pair in pairs]
        options = c.UpdateOptions(learning_rate, gradient_scale, on_nonfinite)
        command = c.UpdateRanks(tuple(c.Rank((share,)) for share in shares), options)
        done = self._executor.execute(command)
        return self._acknowledged(done)

    def assign(self, keys: ArrayLike, rows: ArrayLike) -> Acknowledged:
        """Set rows, (n, dim) float32. If a key is repeated, its last row wins. Optimizer state is
        reset.

        Infinities are stored unchanged; every NaN becomes the contract's one NaN. t does not
        change. Arrays in the device's memory are copied to the host, here and in `put_rows`.
        """
        command: Any = c.Assign(self._keys(keys), rows)  # type: ignore[arg-type]
        return self._acknowledged(self._executor.execute(command))

    def put_rows(
        self, keys: ArrayLike, weights: ArrayLike, state: ArrayLike, add_t: int
    ) -> Acknowledged:
        """Set weights (n, dim) and optimizer state (n, state_dim), and add `add_t` to t.

        A hot replica sends back its rows by this call, with the number of updates applied to them.
        """
        command: Any = c.PutRows(self._keys(keys), weights, state, add_t)  # type: ignore[arg-type]
        return self._acknowledged(self._executor.execute(command))

    def delete(self, keys: ArrayLike) -> Deleted:
        """Delete rows; return how many of the deleted rows were written rows.

        The next lookup of a deleted key returns the initial row, its optimizer state is reset, and
        the digest is the same as if the row had never been written; t does not change. Kept
        checkpoints keep the rows. Space is freed by the merges that follow a commit.

        Parameters
        ----------
        keys : (n,) int64, repeated or not, written or not

        Raises
        ------
        InvalidArgumentError : keys have another shape, dtype or range; or the call is too large.
        TableHeldError : a look-ahead session that is not shared is open on the table.
        CapacityError : the disk, or the log, has no space for the records of deletions.
        """
        return self._executor.execute(c.DeleteRows(self._keys(keys)))

    def clear(self) -> Deleted:
        """Delete all rows of the table, as `delete` does. Other calls wait meanwhile; for a very
        large table, it is faster to drop and create the table again."""
        return self._executor.execute(c.ClearTable(self.name, self.table_id))

    def grow(self, rows: int) -> Acknowledged:
        """Grow the table to `rows` rows, which must not be below its current number."""
        return self._executor.execute(c.GrowTable(self.name, self.table_id, rows))

    # Maintenance

    def flush(self) -> int:
        """Write dirty rows to the log and return their number.

        The rows stay in the cache. A checkpoint or a clean close makes them durable.
        """
        return self._executor.execute(c.Flush(self.name, self.table_id))

    def digest(self, *, timeout_s: float | None = None) -> str:
        """Return the table's digest (docs/contract.md, rule 11), 64 hexadecimal digits.

        The digest covers the state when this call begins; other calls run meanwhile. A digest takes
        a second per GB written since the last digest; the first digest reads the whole table.
        """
        command = c.GetDigest(self.name, self.table_id)
        return self._executor.execute(command, timeout_s=timeout_s).digest

    def leaves(self, *, timeout_s: float | None = None) -> Iterator[tuple[int, str]]:
        """Yield (block, leaf) pairs of the digest, by ascending block; a leaf has 64 hex digits.

        Leaves show where two stores differ: a block has 256 keys. This costs as much as `digest`.

        Raises
        ------
        OutcomeUnknownError : the table has changed meanwhile; start again.
        """
        whole, low = None, 0
        while True:
            command = c.GetLeaves(self.name, self.table_id, low)
            page = self._executor.execute(command, timeout_s=timeout_s)
            if (whole := whole or page.digest.digest) != page.digest.digest:
                raise OutcomeUnknownError(
                    f"table {self.name!r}: it has changed while its digests were read: call again"
                )
            if not page.records:
                return
            for block, leaf in np.frombuffer(page.records, LEAF_RECORD):
                yield int(block), leaf.tobytes().hex()
            low = int(block) + 1

    def stats(self) -> dict[str, Any]:
        """Return rows, dim, t, learning rate, and how many rows are resident and dirty."""
        return self._executor.execute(c.GetStats(self.name, self.table_id))
