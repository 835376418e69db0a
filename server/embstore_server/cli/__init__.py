"""The command line: `embstore serve`, commands for a running server, and the tools.

Results go to standard output, everything else to standard error, so that `--json` can be piped. A
command's module is imported when the command is called, and heavy modules (NumPy, gRPC, the engine)
when it runs, so that `embstore --help` is fast. Commands for a running server need only the extra
`cli`; a command that needs another extra names it in its error (`extras`).
"""

import sys
from collections.abc import Sequence

from embstore.errors import EmbstoreError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status.

    An EmbstoreError is an answer: its message is shown without a traceback. If standard output can
    no longer be written, the command ends in the same way. Any other exception is a bug, and is
    raised. `arguments` are the words after `embstore`; None: the process's own arguments.
    """
    from embstore_server.cli import exits
    from embstore_server.cli.standard_output import OutputLostError, standing_in

    try:
        with standing_in():
            return _run(arguments)
    except OutputLostError as exc:
        if exc.is_pipe:  # the reader has read enough
            return exits.READER_GONE
        from embstore_server.cli.output import show_error

        show_error(str(exc))
        return exits.FAILED


def _run(arguments: Sequence[str] | None) -> int:
    from embstore_server.cli import exits
    from embstore_server.cli.extras import needing

    try:
        with needing("cli"):
            from embstore_server.cli.commands import app
    except EmbstoreError as exc:  # the packages that draw errors are missing, too
        sys.stderr.write(f"error: {exc}\n")
        return exits.FAILED
    try:
        app(arguments, prog_name="embstore")
    except EmbstoreError as exc:
        from embstore_proto.status import answer_of
        from embstore_server.cli.output import show_error

        show_error(str(exc))
        return answer_of(exc).exit
    except SystemExit as exc:  # how every command ends
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    return 0
