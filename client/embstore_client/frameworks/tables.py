"""The tables of a module, and the features that are looked up in them.

An **entry** is an `Ids` or a `Bag`. Several entries can name one table; its features then have
activations of several kinds: a sum and a mean, or pooled rows and a row per id. The table still has
one lookup and one update. A feature can be in several tables; its activations are then named
`feature@table` for each table, as in TorchRec.

Ids are keys of a table, or are **hashed** to keys (`ids="hash"`). In both cases the features of one
table share its keys, because the seed of the hash is the table's name. A table without `rows` has
sparse keys: any 64 bits are a key except -1, which is padding everywhere.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from math import sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from embstore.arrays import of_other_ids
from embstore.config import INITIALIZERS, Initializer, Optimizer, Uniform
from embstore.errors import EmbstoreError, InvalidArgumentError, TableExistsError
from embstore.handles.store import Store
from embstore.hashing import hash_ids, keys_of_hashes
from embstore.optimizers import OPTIMIZERS
from embstore_client.frameworks.padding import PADDING

BagMode = Literal["sum", "mean"]
IdKind = Literal["keys", "hash"]
"""The kind of ids: either keys of the table, or ids of any kind that are hashed."""

ROWS_OF_INITIALIZER_MAX = 1 << 20
"""The number of rows up to which the range of the default initializer shrinks. TorchRec's rule is
made for tables in which every row is trained often. With 2**40 hashed ids, that rule would
initialize rows within 1e-6, and SGD would never move them away from there."""


def default_initializer(rows: int | None) -> Uniform:
    """Return the default initializer: uniform in +-1/sqrt(rows), as in TorchRec, but no narrower
    than +-2**-10. For sparse keys (rows=None) the range is +-2**-10."""
    count = ROWS_OF_INITIALIZER_MAX if rows is None else max(rows, 1)
    bound = 1 / sqrt(min(count, ROWS_OF_INITIALIZER_MAX))
    return Uniform(-bound, bound)


@dataclass(frozen=True)
class Ids:
    """A table that returns a row for each id, and the features that are looked up in it."""

    name: str
    """The name of the table in the store."""
    _: KW_ONLY
    dim: int
    rows: int | None = None
    """Ids are below this number. None: keys are sparse, and any int64 or uint64 is an id."""
    features: Sequence[str]
    """The features. If a feature is in another table of the module too, its activations are named
    `feature@table`."""
    optimizer: Optimizer
    """The optimizer that the store applies to the table."""
    initializer: Initializer | None = None
    """Initial value of rows. None: an existing table keeps its own; a new one gets
    `default_initializer`."""
    seed: int | None = None
    """Seed of the initializer. None: it is derived from the name."""
    padding_idx: int | str | None = None
    """An id that is padding in addition to -1: its row is zeros, and is not trained. If ids are
    hashed, it can be any id, also text; "" makes missing ids padding. For sparse keys it can be any
    integer."""
    trainable: bool = True
    """Whether the table is trained. False: it begins frozen, gets no update, and its t stays."""
    ids: IdKind = "keys"
    """"hash": ids are 64-bit integers or text, in tensors or lists. Their keys are
    `embstore.hash_ids(ids, feature=name, rows=rows)` with the table's name; sparse keys are the
    hashes."""

    def __post_init__(self) -> None:
        if isinstance(self.features, str) or not self.features:
            raise InvalidArgumentError(
                f"table {self.name!r}: expected features to be a list of names, found "
                f"{self.features!r}"
            )
        if self.ids not in ("keys", "hash"):
            raise InvalidArgumentError(
                f'table {self.name!r}: expected ids to be "keys" or "hash", found {self.ids!r}'
            )
        padding = self.padding_idx
        least, end = (-(1 << 63), 1 << 64) if self.rows is None else (0, self.rows)
        is_key = isinstance(padding, int) and least <= padding < end
        if padding is not None and not (is_key or self.ids == "hash"):
            raise InvalidArgumentError(
                f"table {self.name!r}: expected padding_idx to be in [{least}, {end}), found "
                f"{padding!r}; an id of -1 is padding without it"
            )
        object.__setattr__(self, "features", tuple(self.features))

    @property
    def padding_key(self) -> int | None:
        """The int64 key that is padding in addition to -1, or None; always None if ids are
        hashed."""
        padding = self.padding_idx
        if not isinstance(padding, int) or self.hashes:
            return None
        return padding - (1 << 64) if padding >= 1 << 63 else padding

    @property
    def is_sparse(self) -> bool:
        """Whether keys are sparse."""
        return self.rows is None

    @property
    def hashes(self) -> bool:
        """Whether ids are hashed."""
        return self.ids == "hash"

    def hashed(self, ids: Any) -> NDArray[np.int64]:
        """Return the keys of ids of any kind, in the shape of the ids; -1 for padding.

        Raises
        ------
        InvalidArgumentError : `embstore.hash_ids` refuses the ids, or `ids` is a single id without
            a list. (In the result of `features` of `ahead`, a list means several forwards. There,
            pass ids as an array, or a list of ids within a tuple.)
        """
        hashes = hash_ids(ids, feature=self.name)
        if not hashes.ndim:
            raise InvalidArgumentError(
                f"table {self.name!r}: expected an array or a list of ids, found {ids!r}"
            )
        keys = hashes if self.rows is None else keys_of_hashes(hashes, self.rows)
        padding = [PADDING] if self.padding_idx is None else [PADDING, self.padding_idx]
        keys[np.isin(hashes, hash_ids(padding, feature=self.name))] = PADDING
        return keys

    def create(self, store: Store) -> None:
        """Create the table if it does not exist; see `Store.create_table`.

        If no initializer is given, an existing table keeps its own, even if it has grown: the
        default depends on the number of rows with which the table was created.
        """
        made: dict[str, Any] = {
            "dim": self.dim,
            "rows": self.rows,
            "key_space": "sparse" if self.is_sparse else "dense",
            "optimizer": self.optimizer,
            "initializer": self.initializer or default_initializer(self.rows),
            "seed": self.seed,
        }
        try:
            store.create_table(self.name, **made)
        except TableExistsError:
            if self.initializer is not None:
                raise
            there = store.table(self.name).initializer
            store.create_table(self.name, **made | {"initializer": there})


@dataclass(frozen=True)
class Bag(Ids):
    """A table whose rows are pooled bag by bag, and the features that are looked up in it."""

    _: KW_ONLY
    mode: BagMode = "sum"
    """"sum", as for a table of TorchRec; or "mean": the sum divided by the number of ids."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in ("sum", "mean"):
            raise InvalidArgumentError(
                f'table {self.name!r}: expected mode "sum" or "mean", found {self.mode!r}'
            )


@dataclass(frozen=True)
class FeatureLookup:
    """A feature as it is looked up in one table."""

    name: str
    """The name of the feature's activations: the feature's name, or `feature@table`."""
    feature: str
    of: Ids
    """The table's entry, which also defines how rows are pooled."""


_OF_TABLE = ("dim", "rows", "optimizer", "initializer", "seed", "trainable", "ids")
"""The fields that all entries of one table must have in common."""


def checked(entries: Iterable[Any], *kinds: type[Ids]) -> tuple[Any, ...]:
    """Return the entries as a tuple, after checking that all of them are of these kinds.

    Raises
    ------
    InvalidArgumentError : there is no entry; an entry is of another kind; two entries describe one
        table differently; or a feature is twice in one table.
    """
    if isinstance(entries, Ids):
        raise InvalidArgumentError(f"expected a list of tables, found one: [{entries!r}] is one")
    found = tuple(entries)
    if not found:
        raise InvalidArgumentError("expected at least one table")
    for entry in found:
        if type(entry) not in kinds:
            names = " or ".join(kind.__name__ for kind in kinds)
            raise InvalidArgumentError(f"expected tables of class {names}, found {entry!r}")
        first = by_name(found)[entry.name]
        others = [part for part in _OF_TABLE if getattr(entry, part) != getattr(first, part)]
        if others:
            raise InvalidArgumentError(
                f"table {entry.name!r}: expected all its entries to have the same "
                f"{', '.join(others)}, found {first!r} and {entry!r}"
            )
    for name, count in Counter(lookup.name for lookup in lookups_of(found)).items():
        if count > 1:
            raise InvalidArgumentError(
                f"{name!r}: expected each feature once in each table; to look one up in two ways, "
                "give it two names in the mapping of features"
            )
    return found


def by_name(entries: Iterable[Ids]) -> dict[str, Ids]:
    """Return the tables by name, each as the first entry of that table describes it."""
    found: dict[str, Ids] = {}
    for entry in entries:
        found.setdefault(entry.name, entry)
    return found


def lookups_of(entries: Sequence[Ids]) -> tuple[FeatureLookup, ...]:
    """Return the lookups, in the order of the entries and of their features."""
    counts = Counter(feature for entry in entries for feature in entry.features)
    return tuple(
        FeatureLookup(
            feature if counts[feature] == 1 else f"{feature}@{entry.name}", feature, entry
        )
        for entry in entries
        for feature in entry.features
    )


def by_feature(lookups: Sequence[FeatureLookup], given: Any) -> Iterator[tuple[str, Ids, Any]]:
    """Yield the name of each lookup, its entry, and the value of its feature in a mapping.

    Raises
    ------
    InvalidArgumentError : `given` is no mapping, or lacks a feature. Other features are allowed.
    """
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"expected features to be a mapping, found {type(given).__name__}"
        )
    names = list(dict.fromkeys(lookup.feature for lookup in lookups))
    missing = [name for name in names if name not in given]
    if missing:
        raise InvalidArgumentError(f"expected the features {names}, missing are {missing}")
    for lookup in lookups:
        yield lookup.name, lookup.of, given[lookup.feature]


def refused_ids(what: str, expected: str, ids: Any) -> InvalidArgumentError:
    """Return the error for ids that are not valid keys; `what` names the ids."""
    found = getattr(ids, "dtype", type(ids).__name__)
    return InvalidArgumentError(
        f'{what}: expected {expected}, found {found}; {of_other_ids()}, or make it with ids="hash"'
    )


def as_they_are(entries: Iterable[Ids], store: Store | None, frozen: Collection[str]) -> list[Ids]:
    """Return entries with the store's present learning rates, or with the original rates if the
    store cannot be reached. Entries of frozen tables are returned as not trainable."""
    made = [replace(entry, trainable=entry.name not in frozen) for entry in entries]
    try:
        facts = {} if store is None else store.table_facts()
    except EmbstoreError:
        return made
    return [
        replace(table, optimizer=replace(table.optimizer, learning_rate=found.learning_rate))
        if (found := facts.get(table.name)) is not None
        else table
        for table in made
    ]


def config_of(table: Ids) -> dict[str, Any]:
    """Return a table as JSON values; `table_of` is the inverse."""
    config = {field.name: getattr(table, field.name) for field in fields(table)}
    for part in ("optimizer", "initializer"):
        if config[part] is not None:
            config[part] = {"kind": config[part].kind, **asdict(config[part])}
    return {**config, "features": list(table.features)}


def table_of(config: dict[str, Any]) -> Ids:
    """Return the table that `config_of` has described."""
    parts: dict[str, Any] = {}
    for part, kinds in (("optimizer", OPTIMIZERS), ("initializer", INITIALIZERS)):
        if config[part] is not None:
            values = dict(config[part])
            parts[part] = kinds[values.pop("kind")](**values)
    kind = Bag if "mode" in config else Ids
    return kind(**{**config, **parts})
