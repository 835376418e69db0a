"""The reference model: contract.md in NumPy, in plain loops over keys.

It is the specification's twin, to be read beside that page; each rule is a function (rules.py). Of
embstore it imports the configuration dataclasses and the errors alone.

A table's content is t and the rows written, key -> Row, beside its identity and tunables. The
arrays of a Row are never changed in place, so a snapshot is a copy of the dictionary.

Every command checks all arguments, computes, and only then changes content. It takes a command
number when it is acknowledged, also where that changed nothing (a skipped update, an update that
names no table, a table created again as it is).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from embstore.config import (
    Ftrl,
    Initializer,
    Optimizer,
    TableConfig,
)
from embstore.errors import InvalidArgumentError, TableExistsError, TableNotFoundError
from tests.rules import (
    Keys,
    Row,
    Rows,
    apply_update,
    canonical,
    check_denormals,
    default_seed,
    fp32,
    initial_state,
    initial_weights,
    pool_bag,
    scaled_sums,
    spread_bags,
    table_digest,
    table_leaves,
    unaccepted,
)

Share = Mapping[str, tuple[Any, Any]]
"""What one rank sends: table name -> (keys (n,), gradients (n, dim))."""


def _check(condition: Any, expected: str, found: Any) -> None:
    if not condition:
        raise InvalidArgumentError(f"expected {expected}, found {found!r}")


@np.errstate(all="ignore")
def _checked_scalar(value: Any, what: str) -> float:
    """Rule 4: scale and learning rate are finite in fp32 and >= 0."""
    _check(isinstance(value, int | float | np.number), f"{what} to be a number", value)
    _check(np.isfinite(fp32(value)) and value >= 0, f"{what} finite in fp32 and >= 0", value)
    return float(value)


def _checked_rate(optimizer: Optimizer, value: Any) -> float:
    """Rule 4: a learning rate; that of ftrl divides, and is > 0 in fp32."""
    rate = _checked_scalar(value, "learning_rate")
    _check(fp32(rate) > 0 or not isinstance(optimizer, Ftrl), "learning_rate > 0 in fp32", value)
    return rate


def _checked_rows(rows: Any, shape: tuple[int, ...], what: str) -> Rows:
    array = np.asarray(rows)
    _check(array.shape == shape, f"{what} of shape {shape}", array.shape)
    _check(array.size == 0 or array.dtype in (fp32, np.float16), f"{what} float32", array.dtype)
    return array.astype(fp32)


class ReferenceTable:
    """One table: content, tunables, and the commands on it alone. Made by its store only.

    A handle stays good through `restore`; once its table is dropped it raises TableNotFoundError.
    """

    def __init__(self, store: "ReferenceStore", config: TableConfig) -> None:
        self.name = config.name
        self.config = config
        self._store = store
        self._t = 0
        self._rows = config.rows
        self._learning_rate = float(config.optimizer.learning_rate)
        self._written: dict[int, Row] = {}
        self._initial: dict[int, Row] = {}  # remembered results of rule 10, not content

    @property
    def t(self) -> int:
        """Rule 5: accepted updates that named this table, and what put_rows added."""
        return self._t

    @property
    def rows(self) -> int:
        """Keys of a dense table are below this; that of a sparse table has no meaning."""
        return self._rows

    @property
    def written(self) -> set[int]:
        """Rule 7: the keys that update, assign or put_rows have named, and delete has not since;
        those of a sparse table as unsigned integers."""
        return set(self._written)

    @property
    def learning_rate(self) -> float:
        """The rate of updates that give none. A tunable: setting it is a command."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._check_alive()
        self._learning_rate = _checked_rate(self.config.optimizer, value)
        self._store.command_number += 1

    def lookup(self, keys: Any) -> Rows:
        """Return the weights of `keys`, (n, dim)."""
        return self.read_rows(keys)[0]

    def read_rows(self, keys: Any) -> tuple[Rows, Rows]:
        """Return weights (n, dim) and state (n, state_dim) of `keys`; writes nothing (rule 7)."""
        keys = self._checked_keys(keys)
        weights = np.empty((len(keys), self.config.dim), fp32)
        state = np.empty((len(keys), self.config.state_dim), fp32)
        for i, key in enumerate(keys.tolist()):
            weights[i], state[i] = self._row(key)
        return weights, state

    def lookup_pooled(self, keys: Any, offsets: Any, mode: str, weights: Any = None) -> Rows:
        """Rule 8: return one pooled row per bag, (bags, dim)."""
        check_denormals()
        bounds, weights = self._checked_bags(keys, offsets, mode, weights)
        rows = self.lookup(keys)
        pooled = np.empty((len(bounds) - 1, self.config.dim), fp32)
        for bag, (start, stop) in enumerate(pairwise(bounds.tolist())):
            bag_weights = None if weights is None else weights[start:stop]
            pooled[bag] = pool_bag(rows[start:stop], mode, bag_weights)
        return pooled

    def update(
        self,
        keys: Any,
        grads: Any,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: str = "refuse",
    ) -> int:
        """Apply one update of this table alone; return t."""
        self._check_alive()
        share = {self.name: (keys, grads)}
        return self._store.update(share, learning_rate, gradient_scale, on_nonfinite)[self.name]

    def update_pooled(
        self,
        keys: Any,
        offsets: Any,
        grads: Any,
        mode: str,
        weights: Any = None,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: str = "refuse",
    ) -> int:
        """Rule 8: apply one update from gradients of bags, (bags, dim); return t."""
        bounds, weights = self._checked_bags(keys, offsets, mode, weights)
        bag_grads = _checked_rows(grads, (len(bounds) - 1, self.config.dim), "gradients")
        spread = spread_bags(bag_grads, bounds, mode, weights)
        return self.update(keys, spread, learning_rate, gradient_scale, on_nonfinite)

    def assign(self, keys: Any, rows: Any) -> None:
        """Rule 7: set weights, last duplicate wins; state returns to its start, t is unchanged."""
        keys = self._checked_keys(keys)
        weights = _checked_rows(rows, (len(keys), self.config.dim), "rows")
        for key, weight in zip(keys.tolist(), weights, strict=True):
            self._written[key] = Row(canonical(weight), initial_state(self.config))
        self._store.command_number += 1

    def delete(self, keys: Any) -> int:
        """Rule 7: rows are as if never written; t is unchanged. Return how many were written."""
        written = self._written.keys() & set(self._checked_keys(keys).tolist())
        for key in written:
            del self._written[key]
        self._store.command_number += 1
        return len(written)

    def clear(self) -> int:
        """Rule 7: delete all rows."""
        self._check_alive()
        count, self._written = len(self._written), {}
        self._store.command_number += 1
        return count

    def put_rows(self, keys: Any, weights: Any, state: Any, add_t: int) -> None:
        """Rule 7: set weights and state, last duplicate wins; t grows by `add_t`."""
        keys = self._checked_keys(keys)
        weights = _checked_rows(weights, (len(keys), self.config.dim), "weights")
        state = _checked_rows(state, (len(keys), self.config.state_dim), "state")
        _check(isinstance(add_t, int) and 0 <= add_t < 2**64 - self._t, "add_t >= 0", add_t)
        for i, key in enumerate(keys.tolist()):
            self._written[key] = Row(canonical(weights[i]), canonical(state[i]))
        self._t += add_t
        self._store.command_number += 1

    def grow(self, rows: int) -> None:
        """Allow keys below `rows`, which must not be fewer than now."""
        self._check_alive()
        _check(self.config.key_space == "dense", "a dense table", self.config.key_space)
        fits = isinstance(rows, int) and self._rows <= rows <= 2**40
        _check(fits, f"rows in [{self._rows}, 2**40]", rows)
        self._rows = rows
        self._store.command_number += 1

    def digest(self) -> str:
        """Rule 11, as 64 hex digits."""
        self._check_alive()
        return table_digest(self.config, self._t, self._written)

    def leaves(self) -> dict[int, bytes]:
        """Rule 11, by block."""
        self._check_alive()
        return table_leaves(self.config, self._written)

    def _check_alive(self) -> None:
        if self._store.table(self.name) is not self:
            raise TableNotFoundError(f"expected a live table {self.name!r}, found a dropped one")

    def _row(self, key: int) -> Row:
        if key in self._written:
            return self._written[key]
        if key not in self._initial:
            c = self.config
            weights = initial_weights(c.initializer, c.seed, key, c.dim)
            self._initial[key] = Row(canonical(weights), initial_state(c))
        return self._initial[key]

    def _apply(self, gradients: Mapping[int, Rows], learning_rate: float | None) -> None:
        """Rules 4, 5 and 7: one accepted update, also with no keys; every key named is written."""
        self._t += 1
        rate = self._learning_rate if learning_rate is None else learning_rate
        for key, g in gradients.items():
            row = apply_update(self.config.optimizer, rate, self._t, self._row(key), g)
            self._written[key] = row

    def _checked_keys(self, keys: Any) -> Keys:
        self._check_alive()
        array = np.asarray(keys)
        _check(array.ndim == 1, "keys of shape (n,)", array.shape)
        if self.config.key_space == "sparse":
            return self._checked_bits(array)
        integer = array.size == 0 or array.dtype.kind in "iu"
        _check(integer, "keys of dtype int64 or uint64", array.dtype)
        outside = array[(array < 0) | (array >= self._rows)]
        _check(outside.size == 0, f"table {self.name!r}: keys in [0, {self._rows})", outside[:1])
        return array.astype(np.int64)

    def _checked_bits(self, array: Any) -> Any:
        """Rule 10: keys of a sparse table as uint64, of the same bits; 2**64 - 1 is none."""
        integer = array.size == 0 or array.dtype.kind in "iu"
        _check(integer, "keys of dtype int64 or uint64", array.dtype)
        keys = array.astype(np.uint64 if array.dtype == np.uint64 else np.int64).view(np.uint64)
        _check((keys < 2**64 - 1).all(), f"table {self.name!r}: keys below 2**64 - 1", 2**64 - 1)
        return keys

    def _checked_bags(
        self, keys: Any, offsets: Any, mode: str, weights: Any
    ) -> tuple[Keys, Rows | None]:
        """Rule 8: offsets (bags + 1,) rise from 0 to n; weights (n,) are finite, with sum only."""
        keys, bounds = self._checked_keys(keys), np.asarray(offsets)
        _check(bounds.ndim == 1 and bounds.size > 0, "offsets of shape (bags + 1,)", bounds.shape)
        _check(bounds.dtype.kind in "iu", "offsets of dtype int64", bounds.dtype)
        bounds = bounds.astype(np.int64)
        rises = bounds[0] == 0 and bounds[-1] == len(keys) and (np.diff(bounds) >= 0).all()
        _check(rises, f"offsets that rise from 0 to {len(keys)}", bounds)
        _check(mode in ("sum", "mean"), "mode 'sum' or 'mean'", mode)
        if weights is not None:
            _check(mode == "sum", "weights with mode 'sum' only", mode)
            weights = _checked_rows(weights, (len(keys),), "weights")
            _check(np.isfinite(weights).all(), "finite weights", weights)
        return bounds, weights


class ReferenceStore:
    """Tables by name, and the commands that span them.

    command_number : the number that the last acknowledged command was given (rule 5), 0 before.
    """

    kind_of_table = ReferenceTable

    def __init__(self) -> None:
        self.command_number = 0
        self._tables: dict[str, ReferenceTable] = {}

    def create_table(
        self,
        name: str,
        *,
        dim: int,
        rows: int | None = None,
        optimizer: Optimizer,
        initializer: Initializer,
        seed: int | None = None,
        key_space: str = "dense",
    ) -> ReferenceTable:
        """Create a table, or return the one of this identity and rows, its tunables as they are."""
        config = TableConfig.checked(
            name,
            dim=dim,
            rows=rows,
            optimizer=optimizer,
            initializer=initializer,
            seed=seed,
            key_space=key_space,
        )
        if seed is None:
            config = replace(config, seed=default_seed(name))
        table = self._tables.get(name) or self.kind_of_table(self, config)
        if (table.config.identity_json(), table.rows) != (config.identity_json(), config.rows):
            raise TableExistsError(f"expected table {name!r} as it exists, found another identity")
        self._tables[name] = table
        self.command_number += 1
        return table

    def table(self, name: str) -> ReferenceTable:
        """Return the table of that name, or raise TableNotFoundError."""
        if name not in self._tables:
            raise TableNotFoundError(f"expected the name of an existing table, found {name!r}")
        return self._tables[name]

    def tables(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(self._tables)

    def drop_table(self, name: str) -> None:
        """Forget a table. One created later under its name starts anew."""
        del self._tables[self.table(name).name]
        self.command_number += 1

    def lookup(self, keys: Mapping[str, Any]) -> dict[str, Rows]:
        """Return table name -> rows (n, dim) for table name -> keys (n,)."""
        return {name: self.table(name).lookup(named) for name, named in keys.items()}

    def update(
        self,
        updates: Share,
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
        on_nonfinite: str = "refuse",
    ) -> dict[str, int]:
        """Update several tables as one command; return table name -> t."""
        return self._step([updates], learning_rate, gradient_scale, on_nonfinite)

    def update_ranks(
        self,
        shares: Sequence[Share],
        learning_rate: float | None = None,
        gradient_scale: float = 1.0,
    ) -> dict[str, int]:
        """Rule 6: one step of several ranks, in rank order; t of every table any rank named."""
        return self._step(shares, learning_rate, gradient_scale, "refuse")

    def _step(
        self, shares: Sequence[Share], learning_rate: Any, gradient_scale: Any, on_nonfinite: str
    ) -> dict[str, int]:
        """Rules 4, 5, 6, 9: check everything, sum everything, then apply all of it or nothing."""
        check_denormals()
        _check(on_nonfinite in ("refuse", "skip"), "on_nonfinite refuse or skip", on_nonfinite)
        scale = fp32(_checked_scalar(gradient_scale, "gradient_scale"))
        by_table: dict[str, list[tuple[Keys, Rows]]] = {}
        for share in shares:
            for name, (any_keys, any_grads) in share.items():
                table = self.table(name)
                keys = table._checked_keys(any_keys)
                grads = _checked_rows(any_grads, (len(keys), table.config.dim), "gradients")
                by_table.setdefault(name, []).append((keys, grads))
        named = learning_rate if isinstance(learning_rate, Mapping) else {}
        every = None if isinstance(learning_rate, Mapping) else learning_rate
        rates = {name: named.get(name, every) for name in by_table}
        for value in [*named.values(), *([] if every is None else [every])]:
            _checked_scalar(value, "learning_rate")
        for name, rate in rates.items():
            if rate is not None:
                rates[name] = _checked_rate(self._tables[name].config.optimizer, rate)
        gradients = {name: scaled_sums(parts, scale) for name, parts in by_table.items()}
        bad = unaccepted(gradients)
        if bad and on_nonfinite == "refuse":
            name, key = bad[0]
            raise InvalidArgumentError(
                f"table {name!r}: expected gradients of finite squares, found others for key {key}"
            )
        if not bad:
            for name, table_gradients in gradients.items():
                self._tables[name]._apply(table_gradients, rates[name])
        self.command_number += 1
        return {name: self._tables[name].t for name in by_table}

    def snapshot(self) -> dict[str, Any]:
        """Return all content as it is now; opaque, for `restore`."""
        return {
            name: (table, table._rows, table._learning_rate, table._t, dict(table._written))
            for name, table in self._tables.items()
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Return to a snapshot's content; a command of its own, whose number is the next one."""
        self._tables = {name: saved[0] for name, saved in snapshot.items()}
        for table, rows, learning_rate, t, written in snapshot.values():
            table._rows, table._learning_rate, table._t = rows, learning_rate, t
            table._written = dict(written)
        self.command_number += 1
