"""The properties of a table, read from its store."""

from embstore import commands as c
from embstore.commands import Executor
from embstore.config import Initializer, Optimizer, TableConfig
from embstore.results import TableDescription


class TableProperties:
    """Configuration and t of a table. `Table` inherits these properties."""

    def __init__(self, executor: Executor, described: TableDescription) -> None:
        self._executor = executor
        self.name = described.config.name
        self.table_id = described.table_id
        """The id of this table in the store. No other table of the store ever gets this id."""

    def __repr__(self) -> str:
        return f"<embstore.Table {self.name!r}>"

    def describe(self) -> TableDescription:
        """Return configuration, id and t, with one call."""
        return self._executor.execute(c.GetTable(self.name, self.table_id))

    @property
    def config(self) -> TableConfig:
        """The whole configuration, with the current rows and learning rate."""
        return self.describe().config

    @property
    def dim(self) -> int:
        """Elements of a row."""
        return self.config.dim

    @property
    def rows(self) -> int:
        """The number of rows: keys are below it, and `grow` raises it. For sparse keys it is 2**64
        - 1."""
        return self.config.rows

    @property
    def t(self) -> int:
        """The number of applied updates that named the table."""
        return self.describe().t

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, with the current learning rate."""
        return self.config.optimizer

    @property
    def initializer(self) -> Initializer:
        """The initializer, which determines the value of rows that were never written."""
        return self.config.initializer

    @property
    def seed(self) -> int:
        """The seed of the initial rows."""
        return self.config.seed

    @property
    def learning_rate(self) -> float:
        """The rate of updates that do not specify one. Setting it is a mutating command."""
        return self.config.optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._executor.execute(c.SetLearningRate(self.name, self.table_id, value))
