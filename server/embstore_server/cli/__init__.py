"""What a user types: `embstore serve`, and the commands that ask a server that runs.

    commands     the tree of commands
    serving      serve
    tables       table create, list, show, drop
    bench, checkpoint, demo, digest, sessions, stats   the command of that name
    frequency    export-profile, import-profile, warm, pin-hotset, unpin-hotset
    connection   the way to a server
    options      the flags that commands share; parameters: values of more than one word
    output       what is shown: tables for people, one JSON document for scripts, progress
    exits        what the exit status says

Results go to standard output, everything else to standard error, so that `--json` can be piped.
Whatever is heavy (NumPy, gRPC, the engine) is imported by the command that needs it, when it runs:
`embstore --help` is there at once.
"""

import sys
from collections.abc import Sequence

from embstore.errors import EmbstoreError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status.

    An EmbstoreError is told in as many lines as its message has, without a trace: it is an answer.
    Anything else that is raised is a mistake of ours, and shows its trace.

    Parameters
    ----------
    arguments : the words after `embstore`; None: those of the process
    """
    try:
        from embstore_server.cli.commands import app
    except ModuleNotFoundError as exc:
        if exc.name not in ("typer", "rich"):
            raise
        sys.stderr.write('error: the commands need more: pip install "embstore[server]"\n')
        return 1
    try:
        app(arguments, prog_name="embstore")
    except EmbstoreError as exc:
        from embstore_server.cli.exits import exit_status
        from embstore_server.cli.output import show_error

        show_error(str(exc))
        return exit_status(exc)
    except SystemExit as exc:  # how every command ends
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    return 0
