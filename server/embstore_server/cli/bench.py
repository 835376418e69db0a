"""`embstore bench`: a quick load against a server that runs.

It makes a table of its own, looks up and updates batches of Zipf keys there, one call at a time,
and drops it: what one trainer would see from this machine, network included. A measurement with
peers, medians and hardware is `make bench`.

The key of rank r (1 is the hottest) has probability r**-s / sum(k**-s, k = 1..rows), drawn by the
inverse of the cumulated probabilities; ranks are keys, as the cache does not care which are hot.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from embstore.errors import EmbstoreError
from embstore_server.cli import connection, output
from embstore_server.cli.connection import ServedStore, ServedTable
from embstore_server.cli.options import ADDRESS, TIMEOUT_S, Address, AsJson, Timeout, TlsCa
from embstore_server.cli.output import bytes_text

if TYPE_CHECKING:
    from numpy.random import Generator

    from embstore.arrays import Keys

_WARM_UP_CALLS = 5
_LEARNING_RATE = 0.01
_KEYS_BYTES, _ELEMENT_BYTES = 8, 4


@dataclass(frozen=True)
class Load:
    """What is asked: `calls` lookups, then as many updates, of `keys` keys each."""

    rows: int
    dim: int
    keys: int
    calls: int
    zipf: float
    seed: int


@dataclass(frozen=True)
class Measured:
    """What one kind of call came to."""

    calls: int
    seconds: float
    calls_per_second: float
    keys_per_second: float
    bytes_per_second: float
    """Of keys and rows as the trainer has them, repeats included."""
    p50_ms: float
    p99_ms: float


def bench(
    *,
    rows: Annotated[int, typer.Option(min=1, max=100_000_000, help="Of the table.")] = 1_000_000,
    dim: Annotated[int, typer.Option(min=1, help="Elements of a row.")] = 64,
    keys: Annotated[int, typer.Option(min=1, help="Of a call, repeats included.")] = 20_000,
    calls: Annotated[int, typer.Option(min=1, help="Lookups; as many updates.")] = 200,
    zipf: Annotated[float, typer.Option(min=0.0, help="Exponent of the keys' law.")] = 1.05,
    seed: Annotated[int, typer.Option(min=0, help="Of keys and gradients.")] = 1,
    address: Address = ADDRESS,
    timeout: Timeout = TIMEOUT_S,
    tls_ca: TlsCa = None,
    as_json: AsJson = False,
) -> None:
    """Measure lookups and updates against a server, on a table that is dropped at the end."""
    load = Load(rows, dim, keys, calls, zipf, seed)
    with connection.connected(address, timeout, tls_ca) as store, _table(store, load) as table:
        measured = _measured(table, load)
    if as_json:
        results = {name: asdict(result) for name, result in measured.items()}
        output.show_json({"load": asdict(load), **results})
        return
    output.show_rows(
        ("", "calls/s", "keys/s", "bytes/s", "p50 ms", "p99 ms"),
        [(name, *_cells(result)) for name, result in measured.items()],
    )


@contextmanager
def _table(store: ServedStore, load: Load) -> Iterator[ServedTable]:
    """Make the load's table, and drop it whatever happens meanwhile."""
    from embstore.config import RowWiseAdagrad, Uniform

    name = f"embstore-bench/{uuid4().hex}"
    table = store.create_table(
        name,
        dim=load.dim,
        rows=load.rows,
        optimizer=RowWiseAdagrad(_LEARNING_RATE),
        initializer=Uniform(-0.01, 0.01),
        seed=load.seed,
    )
    try:
        yield table
    except BaseException:
        with suppress(EmbstoreError):  # what went wrong first is what must be told
            store.drop_table(name)
        raise
    store.drop_table(name)


def _measured(table: ServedTable, load: Load) -> dict[str, Measured]:
    import numpy as np

    rng = np.random.default_rng(load.seed)
    drawn = _drawn(load, rng)
    gradients = rng.standard_normal((load.keys, load.dim), dtype=np.float32) * np.float32(0.01)

    def update(keys: "Keys") -> None:
        table.update(keys, gradients)

    for keys in islice(drawn, _WARM_UP_CALLS):
        table.lookup(keys)
        update(keys)
    with output.progress("lookups and updates", 2 * load.calls) as advance:
        return {
            "lookup": _timed(table.lookup, drawn, load, advance),
            "update": _timed(update, drawn, load, advance),
        }


def _drawn(load: Load, rng: "Generator") -> Iterator["Keys"]:
    """Yield the keys of one call after the other, (load.keys,) int64 each, without end."""
    import numpy as np

    ranks = np.arange(1, load.rows + 1, dtype=np.float64)
    cumulated = np.cumsum(ranks**-load.zipf)
    while True:
        draws = rng.random(load.keys) * cumulated[-1]
        yield np.searchsorted(cumulated, draws, side="right").clip(max=load.rows - 1)


def _timed(
    call: Callable[["Keys"], Any], drawn: Iterator["Keys"], load: Load, advance: output.Advance
) -> Measured:
    import numpy as np

    spent = []
    for keys in islice(drawn, load.calls):  # drawn outside of what is timed
        begun = perf_counter()
        call(keys)
        spent.append(perf_counter() - begun)
        advance(1)
    seconds = sum(spent)
    rate = load.calls / seconds
    p50, p99 = np.percentile(spent, (50, 99)) * 1000
    return Measured(
        calls=load.calls,
        seconds=seconds,
        calls_per_second=rate,
        keys_per_second=rate * load.keys,
        bytes_per_second=rate * load.keys * (_KEYS_BYTES + _ELEMENT_BYTES * load.dim),
        p50_ms=float(p50),
        p99_ms=float(p99),
    )


def _cells(result: Measured) -> tuple[Any, ...]:
    return (
        round(result.calls_per_second, 1),
        round(result.keys_per_second),
        f"{bytes_text(int(result.bytes_per_second))}/s",
        round(result.p50_ms, 2),
        round(result.p99_ms, 2),
    )
