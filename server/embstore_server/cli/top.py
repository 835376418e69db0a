"""`embstore top`: a running store in a terminal, as its page shows it in a browser.

The command reads the stats at intervals, and draws the whole screen each time; counters are shown
as rates per second since the last reading. If the output is a pipe or a file, it cannot be redrawn:
the command reads the stats twice, to compute rates, writes the second result, and ends.
"""

from functools import partial
from time import monotonic, sleep
from typing import Annotated, Any

from embstore_server.cli import output
from embstore_server.cli.connection import EVERY_FLAG, EVERY_S, Connect, on_server
from embstore_server.cli.flags import flag
from embstore_server.cli.output import Shown
from embstore_server.cli.watching import watched


@on_server(of_one=True)
def top(
    connect: Connect,
    *,
    once: Annotated[bool, flag("Write the second look and end.", None, "--once")] = False,
    every: Annotated[float, EVERY_FLAG] = EVERY_S,
) -> Shown:
    """Watch a running store: hit rates, stages, memory, sessions, files, tables.

    Ctrl-C ends it.
    """
    from embstore_server.cli.top_view import StatsSample, drawn

    now: StatsSample | None = None

    def look() -> Shown:
        nonlocal now
        stats: dict[str, Any] = store.stats()
        now = StatsSample(stats, monotonic(), (now.stats, now.at) if now else None)
        return stats, partial(drawn, now)

    with connect() as store:
        if output.is_terminal() and not once:
            return watched(look, every)
        look()
        sleep(every)
        return look()
