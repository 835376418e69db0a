"""Which tables a module has, and which features are looked up in them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from math import sqrt
from typing import Any, Literal

from embstore.config import INITIALIZERS, Initializer, Optimizer, Uniform
from embstore.errors import EmbstoreError, InvalidArgumentError, TableExistsError
from embstore.handles.store import Store
from embstore.optimizers import OPTIMIZERS

BagMode = Literal["sum", "mean"]

ROWS_OF_INITIALIZER_MAX = 1 << 20
"""Rows that the default initializer counts. TorchRec's rule is made for tables whose every row is
trained often; at 2**40 hashed ids its rows would begin at 5e-7, from where SGD never leads away."""


def default_initializer(rows: int) -> Uniform:
    """Return what rows hold before they are written where nothing else is said: uniform in
    +-1/sqrt(rows), as TorchRec has it, and at least in +-2**-10."""
    bound = 1 / sqrt(min(max(rows, 1), ROWS_OF_INITIALIZER_MAX))
    return Uniform(-bound, bound)


@dataclass(frozen=True)
class Ids:
    """A table whose rows come id by id, and the features that are looked up in it."""

    name: str
    """Of the table in the store."""
    _: KW_ONLY
    dim: int
    rows: int
    """Ids are below this."""
    features: Sequence[str]
    """No other table of the module has one of these names."""
    optimizer: Optimizer
    """Of the store, which applies it."""
    initializer: Initializer | None = None
    """None: what a table that is there has; for a new one `default_initializer`."""
    seed: int | None = None
    """None: derived from the name."""
    trainable: bool = True
    """False: the module begins with the table frozen; it has no update, and its t stays."""

    def __post_init__(self) -> None:
        if isinstance(self.features, str) or not self.features:
            raise InvalidArgumentError(
                f"table {self.name!r}: expected features to be a list of names, found "
                f"{self.features!r}"
            )
        object.__setattr__(self, "features", tuple(self.features))

    def create(self, store: Store) -> None:
        """Make the table, unless it is there; see `Store.create_table`.

        Without an initializer a table that is there keeps its own, as one that has grown does: the
        default is of the rows that it was made with.
        """
        made: dict[str, Any] = {
            "dim": self.dim,
            "rows": self.rows,
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
    """"sum", or "mean": the sum divided by the number of ids."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in ("sum", "mean"):
            raise InvalidArgumentError(
                f'table {self.name!r}: expected mode "sum" or "mean", found {self.mode!r}'
            )


def by_name(tables: Sequence[Any], *kinds: type[Ids]) -> dict[str, Any]:
    """Return tables of some kinds by name.

    Raises
    ------
    InvalidArgumentError : none, one of another kind, a name or a feature that is there twice.
    """
    found: dict[str, Any] = {}
    features: set[str] = set()
    for table in tables:
        if type(table) not in kinds:
            names = " or ".join(kind.__name__ for kind in kinds)
            raise InvalidArgumentError(f"expected tables of class {names}, found {table!r}")
        twice = features.intersection(table.features)
        if table.name in found or twice or len(set(table.features)) < len(table.features):
            raise InvalidArgumentError(
                f"table {table.name!r}: expected each table and each feature once, found "
                f"{list(table.features)} after {sorted(features)}"
            )
        found[table.name] = table
        features.update(table.features)
    if not found:
        raise InvalidArgumentError("expected at least one table")
    return found


def by_feature(tables: Mapping[str, Ids], given: Any) -> Iterator[tuple[str, Ids, Any]]:
    """Yield each feature, its table and what a mapping has for it, in the order of the tables.

    Raises
    ------
    InvalidArgumentError : it is no mapping, or a feature is missing; it may have others too.
    """
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"expected features to be a mapping, found {type(given).__name__}"
        )
    found = [(name, table) for table in tables.values() for name in table.features]
    missing = [name for name, _ in found if name not in given]
    if missing:
        names = [name for name, _ in found]
        raise InvalidArgumentError(f"expected the features {names}, missing are {missing}")
    for name, table in found:
        yield name, table, given[name]


def as_they_are(
    tables: Mapping[str, Ids], store: Store | None, frozen: Collection[str]
) -> list[Ids]:
    """Return tables with the learning rates that the store has now, as they were made where it
    cannot be asked; the frozen ones as not trainable."""
    made = [replace(table, trainable=name not in frozen) for name, table in tables.items()]
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
    """Return a table in what JSON has; `table_of` is the way back."""
    config = {field.name: getattr(table, field.name) for field in fields(table)}
    for part in ("optimizer", "initializer"):
        if config[part] is not None:
            config[part] = {"kind": config[part].kind, **asdict(config[part])}
    return {**config, "features": list(table.features)}


def table_of(kind: type[Ids], config: dict[str, Any]) -> Ids:
    """Return the table that `config_of` has described."""
    parts: dict[str, Any] = {}
    for part, kinds in (("optimizer", OPTIMIZERS), ("initializer", INITIALIZERS)):
        if config[part] is not None:
            values = dict(config[part])
            parts[part] = kinds[values.pop("kind")](**values)
    return kind(**{**config, **parts})
