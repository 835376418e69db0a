"""What an exit status means; `embstore_proto.status` says which error ends with which.

DEVICE_FAILED is EX_SOFTWARE of sysexits.h, the nearest standard status: the rows that only the
device had are lost, and a supervisor may start the server again, which opens its last checkpoint.
"""

OK, FAILED, USAGE, NOT_FOUND, NO_ANSWER, CONFLICT = range(6)
DEVICE_FAILED = 70

MEANINGS = {
    OK: "done",
    FAILED: "failed",
    USAGE: "an invalid command line, argument or setting",
    NOT_FOUND: "no such table, checkpoint or step",
    NO_ANSWER: "no answer: server not reached, too late, overloaded, starting or stopping",
    CONFLICT: "a conflict: it exists already, a session has locked it, or the directory is in use",
    DEVICE_FAILED: "the device of the server failed",
}

LEGEND = "Exit status:\n" + ";\n".join(f"{n}  {text}" for n, text in MEANINGS.items()) + "."
"""For the help, which may join the lines."""
