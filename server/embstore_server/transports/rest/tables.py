# ruff: noqa: RUF009 - the calls declare fields
"""GET /api/v1/tables, /tables/{name}, /tables/{name}/stats.

**Names contain slashes**, and the last part of a name can be "stats". Therefore the path is matched
as it was sent, and `/` and `%2F` differ: `/tables/ads/stats` are the stats of "ads", while
`/tables/ads%2Fstats` is the table "ads/stats", whose stats are at `/tables/ads/stats/stats` (or
`/tables/ads%2Fstats/stats`). In other names it makes no difference how a slash is written.
"""

from dataclasses import asdict, dataclass
from typing import Annotated, Any
from urllib.parse import unquote

from fastapi import APIRouter, Path

from embstore.commands import GetTable, ListTables
from embstore.engine.stats import TableStats
from embstore.stats import document, gauge, text
from embstore_server.transports.rest.calls import Calling, CallRoute, one_table
from embstore_server.transports.rest.models import reply, reply_model

router = APIRouter(route_class=CallRoute, tags=["tables"])

TableName = Annotated[
    str,
    Path(
        description='Slashes may be written as they are; in a last part "stats" as %2F',
        examples=["ads"],
    ),
]


@dataclass
class TableDescription:
    """The description of a table."""

    name: str = text("Parts of [A-Za-z0-9_.-] joined by slashes.", lambda d: d.config.name)
    table_id: int = gauge("Never used again, not even when the table is dropped.")
    dim: int = gauge("Elements of a row's weights.", lambda d: d.config.dim)
    rows: int = gauge("Number of rows: 0 <= key < rows.", lambda d: d.config.rows)
    key_space: str = text(
        "dense: keys are 0 to rows - 1; sparse: any 64 bits.", lambda d: d.config.key_space
    )
    optimizer: dict[str, str | float | bool] = text(
        "Kind and parameters.", lambda d: _parameters(d.config.optimizer)
    )
    initializer: dict[str, str | float | bool] = text(
        "Kind and parameters.", lambda d: _parameters(d.config.initializer)
    )
    seed: int = gauge("Of the initial rows, up to 2**64 - 1.", lambda d: d.config.seed)
    state_dim: int = gauge("Elements of a row's optimizer state.", lambda d: d.config.state_dim)
    t: int = gauge("Updates applied.")


def _parameters(part: Any) -> dict[str, str | float | bool]:
    return {"kind": part.kind} | asdict(part)


_TABLES = reply_model("Tables", "All tables.", tables=(list[TableDescription], "By name"))
_TABLE = reply_model("TableReply", "One table.", table=(TableDescription, "What it is"))
_STATS = reply_model(
    "TableStatsReply",
    "One table's stats.",
    name=(str, "Name of the table"),
    stats=(TableStats, "Its stats"),
)


@router.get("/tables", name="ListTables", response_model=_TABLES)
async def list_tables(call: Calling) -> dict[str, Any]:
    """Return the descriptions of all tables."""
    answered = await call.execute(ListTables())
    tables = [document(TableDescription, table) for table in answered.value]
    return reply(answered.context, tables=tables)


@router.get("/tables/{name:path}/stats", name="GetStats", response_model=_STATS)
async def get_table_stats(call: Calling, name: TableName) -> dict[str, Any]:
    """Return one table's stats."""
    answered = await call.stats(one_table(unquote(name)))
    return reply(answered.context, name=unquote(name), stats=answered.value)


@router.get("/tables/{name:path}", name="GetTable", response_model=_TABLE)
async def get_table(call: Calling, name: TableName) -> dict[str, Any]:
    """Return the description of one table."""
    answered = await call.execute(GetTable(unquote(name)))
    return reply(answered.context, table=document(TableDescription, answered.value))
