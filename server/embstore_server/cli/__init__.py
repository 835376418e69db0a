"""The command line: `embstore serve`, commands for a running server, and the tools.

Results are written to standard output, everything else to standard error, so that the output of
`--json` can be piped. A command's module is imported when the command is called, and heavy modules
(NumPy, gRPC, the engine) when the command runs, so that `embstore --help` is fast. Commands for a
running server need only the extra `cli`; if a command lacks another extra, its error names that
extra (`extras`).
"""

import sys
from collections.abc import Sequence

from embstore.errors import EmbstoreError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status.

    An EmbstoreError is an answer to the user: its message is shown without a traceback. A command
    whose standard output can no longer be written also ends without a traceback. Any other
    exception is a bug, and is raised. `arguments` are the words after `embstore`; None: the
    process's own arguments.
    """
    from embstore_server.cli import exits
    from embstore_server.cli.standard_output import OutputLostError, standing_in

    try:
        with standing_in():
            return _run(arguments)
    except OutputLostError as exc:
        if exc.is_pipe:  # the reader of the pipe has read enough
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
    except EmbstoreError as exc:  # the packages that draw errors may be missing, too
        sys.stderr.write(f"error: {exc}\n")
        return exits.FAILED
    try:
        app(arguments, prog_name="embstore")
    except EmbstoreError as exc:
        from embstore_proto.status import answer_of
        from embstore_server.cli.output import show_error

        show_error(str(exc))
        return answer_of(exc).exit
    except SystemExit as exc:  # every command ends in this way
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    return 0
