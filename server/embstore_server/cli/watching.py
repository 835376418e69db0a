"""Repeated calls of a server: `embstore top`, and `--watch` of other commands.

On a terminal each result is drawn over the previous one, and the last result stays after Ctrl-C. In
a pipe or a file, results are written one after another (with --json one line per result), until the
reader closes the pipe.
"""

from collections.abc import Callable
from time import sleep

from embstore_server.cli import output
from embstore_server.cli.output import Shown


def watch(look: Callable[[], Shown], every_s: float, *, as_json: bool) -> None:
    """Show the result of `look` every `every_s` seconds, until Ctrl-C."""
    if output.is_terminal() and not as_json:
        document, drawn = watched(look, every_s)
        output.show(document, drawn, as_json=False)
        return
    try:
        while True:
            document, drawn = look()
            if as_json:
                output.show_json_line(document)
            else:
                output.show(document, drawn, as_json=False)
            sleep(every_s)
    except KeyboardInterrupt:
        return


def watched(look: Callable[[], Shown], every_s: float) -> Shown:
    """Draw the results of `look` on the whole terminal until Ctrl-C; return the last result."""
    shown = look()
    try:
        with output.screen(output.drawn(shown[1])) as update:
            while True:
                sleep(every_s)
                shown = look()
                update(output.drawn(shown[1]))
    except KeyboardInterrupt:
        return shown
