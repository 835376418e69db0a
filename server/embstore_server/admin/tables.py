"""GET /api/v1/tables, /tables/{name}, /tables/{name}/stats.

**Names hold slashes**, and the last part of one may be "stats". So the path is matched as it was
sent, and a slash is read in two ways: `/tables/ads/stats` are the figures of "ads", while
`/tables/ads%2Fstats` is the table "ads/stats", whose figures are at `/tables/ads/stats/stats` (or
`/tables/ads%2Fstats/stats`). In other names it does not matter how a slash is written.
"""

from dataclasses import asdict
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Path
from pydantic import Field

from embstore.store import Store
from embstore.table import Table
from embstore_proto.configs import Described
from embstore_server.admin.calls import Calling, CallRoute
from embstore_server.admin.figures import TableFigures
from embstore_server.admin.models import CONTEXT_EXAMPLE, Context, Reply, examples

router = APIRouter(route_class=CallRoute, tags=["tables"])

TableName = Annotated[
    str,
    Path(
        description='Slashes may be written as they are; in a last part "stats" as %2F',
        examples=["ads"],
    ),
]

TABLE_EXAMPLE: dict[str, Any] = {
    "name": "ads",
    "table_id": 0,
    "dim": 64,
    "rows": 10_000_000,
    "key_space": "dense",
    "optimizer": {"kind": "rowwise_adagrad", "learning_rate": 0.01},
    "initializer": {"kind": "uniform", "low": -0.01, "high": 0.01},
    "seed": 7,
    "state_dim": 1,
    "t": 120000,
}


class TableDescription(Reply):
    """What a table is."""

    model_config = examples(TABLE_EXAMPLE)

    name: str = Field(description="Parts of [a-z0-9_.-] joined by slashes")
    table_id: int = Field(description="Never used again, also when the table is dropped")
    dim: int = Field(description="fp32 of a row's weights")
    rows: int = Field(description="Keys are below this")
    key_space: str = Field(description='"dense": keys are 0 to rows - 1')
    optimizer: dict[str, str | float] = Field(description='"kind" and parameters')
    initializer: dict[str, str | float] = Field(description='"kind" and parameters')
    seed: int = Field(description="Of the initial rows, up to 2**64 - 1")
    state_dim: int = Field(description="fp32 of optimizer state per row")
    t: int = Field(description="Updates applied")

    @classmethod
    def of(cls, described: Described) -> "TableDescription":
        """Return a configuration with what the store says of it."""
        config = described.config
        return cls(
            name=config.name,
            table_id=described.table_id,
            dim=config.dim,
            rows=config.rows,
            key_space=config.key_space,
            optimizer=_part(config.optimizer),
            initializer=_part(config.initializer),
            seed=config.seed,
            state_dim=config.state_dim,
            t=described.t,
        )


class Tables(Reply):
    """All tables."""

    model_config = examples({"context": CONTEXT_EXAMPLE, "tables": [TABLE_EXAMPLE]})

    context: Context
    tables: list[TableDescription] = Field(description="By name")


class TableReply(Reply):
    """One table."""

    context: Context
    table: TableDescription


class TableStats(Reply):
    """One table's figures."""

    context: Context
    name: str
    stats: TableFigures


@router.get("/tables", name="ListTables")
async def list_tables(call: Calling) -> Tables:
    """Return what every table is."""
    answered = await call.run(
        lambda store: [_described(store.table(name)) for name in store.tables()]
    )
    return Tables(
        context=Context.of(answered.context),
        tables=[TableDescription.of(table) for table in answered.value],
    )


@router.get("/tables/{name:path}/stats", name="GetStats")
async def get_table_stats(call: Calling, name: TableName) -> TableStats:
    """Return one table's figures."""
    answered = await call.run(lambda store: store.table(unquote(name)).stats())
    return TableStats(
        context=Context.of(answered.context),
        name=unquote(name),
        stats=TableFigures.of(answered.value),
    )


@router.get("/tables/{name:path}", name="GetTable")
async def get_table(call: Calling, name: TableName) -> TableReply:
    """Return what one table is."""

    def work(store: Store) -> Described:
        return _described(store.table(unquote(name)))

    answered = await call.run(work)
    return TableReply(
        context=Context.of(answered.context), table=TableDescription.of(answered.value)
    )


def _described(table: Table) -> Described:
    return Described(table.config, table.table_id, table.t)


def _part(part: Any) -> dict[str, str | float]:
    return {"kind": part.kind} | asdict(part)
