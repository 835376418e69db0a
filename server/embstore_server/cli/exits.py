"""The exit statuses of commands; `embstore_proto.status` assigns them to errors.

DEVICE_FAILED is EX_SOFTWARE of sysexits.h, the nearest standard status. Rows that existed only on
the device are lost. A supervisor may start the server again, which then opens its last checkpoint.
A status above 128 is 128 plus the number of a signal, as a shell reports it for a program that a
signal has ended. Unlike such a program, a command has caught the signal, and has cleaned up.
"""

from signal import SIGINT, SIGPIPE, SIGTERM

OK, FAILED, USAGE, NOT_FOUND, NO_ANSWER, CONFLICT = range(6)
DEVICE_FAILED = 70
BY_SIGNAL = 128
INTERRUPTED, READER_GONE, TERMINATED = (BY_SIGNAL + n for n in (SIGINT, SIGPIPE, SIGTERM))

MEANINGS = {
    OK: "done",
    FAILED: "failed",
    USAGE: "an invalid command line, argument or setting",
    NOT_FOUND: "no such table, checkpoint or step",
    NO_ANSWER: "no answer: server not reached, too late, overloaded, starting or stopping",
    CONFLICT: "a conflict: it exists already, a session has locked it, or the directory is in use",
    DEVICE_FAILED: "the device of the server failed",
    INTERRUPTED: "interrupted by Ctrl-C",
    READER_GONE: "the reader of the standard output has ended",
    TERMINATED: "ended by SIGTERM",
}

LEGEND = "Exit status:\n" + ";\n".join(f"{n}  {text}" for n, text in MEANINGS.items()) + "."
"""The text about exit statuses in the help; the help may join its lines."""
