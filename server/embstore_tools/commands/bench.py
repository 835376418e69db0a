"""`embstore bench`: a quick load against a running server.

The command creates a temporary table, and looks up and updates batches of Zipf keys in it, one call
at a time. It drops the table at the end, even if a signal ends the command. The measured times are
those of one trainer on this machine, network included. `make bench` compares embstore with other
systems.

The key of rank r (1 is the hottest) has the probability r**-s / sum(k**-s, k = 1..rows), and is
drawn by the inverse of the cumulative probabilities. Ranks serve as keys, because it does not
matter to the cache which keys are hot.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

from embstore.errors import EmbstoreError, TableNotFoundError
from embstore_server.cli import output
from embstore_server.cli.connection import Connect, on_server
from embstore_server.cli.flags import flag
from embstore_server.cli.output import Shown
from embstore_server.cli.signals import undisturbed
from embstore_server.setup.parsing import bytes_text

if TYPE_CHECKING:
    from numpy.random import Generator

    from embstore.arrays import Keys
    from embstore.handles.store import Store
    from embstore.handles.table import Table

_WARM_UP_CALLS = 5
_LEARNING_RATE = 0.01
_KEYS_BYTES = 8
_DROP_S = 10.0
"""The most seconds to wait for the drop of the table; no signal ends the command during this
wait."""


@dataclass(frozen=True)
class Load:
    """The load: `calls` lookups, then `calls` updates, of `keys` keys each."""

    rows: int
    dim: int
    keys: int
    calls: int
    zipf: float
    seed: int


@on_server()
def bench(
    connect: Connect,
    *,
    rows: Annotated[int, flag("Rows of the table.", min=1, max=100_000_000)] = 1_000_000,
    dim: Annotated[int, flag("Elements of a row.", min=1)] = 64,
    keys: Annotated[int, flag("Keys of a call, repeated ones too.", min=1)] = 20_000,
    calls: Annotated[int, flag("Lookups; as many updates.", min=1)] = 200,
    zipf: Annotated[float, flag("Exponent of the Zipf law of keys.", min=0.0)] = 1.05,
    seed: Annotated[int, flag("Seed of keys and gradients.", min=0)] = 1,
) -> Shown:
    """Measure lookups and updates of a server, on a temporary table."""
    load = Load(rows, dim, keys, calls, zipf, seed)
    with connect() as store, _table(store, load) as table:
        measured = _measured(table, load)
    drawn = [
        (
            name,
            round(result["calls_per_second"], 1),
            round(result["keys_per_second"]),
            f"{bytes_text(int(result['bytes_per_second']))}/s",
            round(result["p50_ms"], 2),
            round(result["p99_ms"], 2),
        )
        for name, result in measured.items()
    ]
    columns = ("", "calls/s", "keys/s", "bytes/s", "p50 ms", "p99 ms")
    return {"load": asdict(load), **measured}, partial(output.rows, columns, drawn)


@contextmanager
def _table(store: "Store", load: Load) -> Iterator["Table"]:
    """Create the load's table, and drop it at the end. The table is also dropped after an error or
    a signal, even if the signal arrives before the server's answer."""
    from embstore.config import RowWiseAdagrad, Uniform

    name = f"embstore-bench/{uuid4().hex}"
    try:
        yield store.create_table(
            name,
            dim=load.dim,
            rows=load.rows,
            optimizer=RowWiseAdagrad(_LEARNING_RATE),
            initializer=Uniform(-0.01, 0.01),
            seed=load.seed,
        )
    except BaseException:  # reported even if the drop fails
        with undisturbed():
            try:
                _drop(store, name)
            except TableNotFoundError:
                pass  # the table was not created
            except EmbstoreError as exc:
                output.show_error(f"{name} may be left; drop it with `embstore table drop`: {exc}")
        raise
    with undisturbed():
        _drop(store, name)


def _drop(store: "Store", name: str) -> None:
    from embstore.commands import DropTable

    store.executor.execute(DropTable(name), timeout_s=_DROP_S)


def _measured(table: "Table", load: Load) -> dict[str, dict[str, float]]:
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
    """Yield the keys of each call, (load.keys,) int64, without end."""
    import numpy as np

    ranks = np.arange(1, load.rows + 1, dtype=np.float64)
    cumulative = np.cumsum(ranks**-load.zipf)
    while True:
        draws = rng.random(load.keys) * cumulative[-1]
        yield np.searchsorted(cumulative, draws, side="right").clip(max=load.rows - 1)


def _timed(
    call: Callable[["Keys"], Any], drawn: Iterator["Keys"], load: Load, advance: output.Advance
) -> dict[str, float]:
    """Return the results of one kind of call. Bytes are those of keys and rows, including repeated
    keys and rows."""
    import numpy as np

    from embstore.layout import VALUE_BYTES

    times = []
    for keys in islice(drawn, load.calls):  # keys are drawn outside of the timed call
        begin = perf_counter()
        call(keys)
        times.append(perf_counter() - begin)
        advance(1)
    rate = load.calls / sum(times)
    p50, p99 = np.percentile(times, (50, 99)) * 1000
    return {
        "calls": load.calls,
        "seconds": sum(times),
        "calls_per_second": rate,
        "keys_per_second": rate * load.keys,
        "bytes_per_second": rate * load.keys * (_KEYS_BYTES + VALUE_BYTES * load.dim),
        "p50_ms": float(p50),
        "p99_ms": float(p99),
    }
