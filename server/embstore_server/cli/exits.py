"""What the exit status says: one number for each kind of answer that a script can act on.

2 is also what a command line that cannot be understood ends with.
"""

from embstore import errors
from embstore.errors import EmbstoreError

OK, FAILED, USAGE, NOT_FOUND, NO_ANSWER, CONFLICT = range(6)
DEVICE_FAILED = 70
"""EX_SOFTWARE of sysexits.h is the nearest there is. Of a server: what it held is gone, and whoever
watches it may start it again, on another device if this one stays away."""

EXITS: dict[type[EmbstoreError], int] = {
    errors.InvalidArgumentError: USAGE,
    errors.PermissionDeniedError: FAILED,
    errors.TableNotFoundError: NOT_FOUND,
    errors.CheckpointNotFoundError: NOT_FOUND,
    errors.StepNotFoundError: NOT_FOUND,
    errors.TableExistsError: CONFLICT,
    errors.CheckpointExistsError: CONFLICT,
    errors.TableMismatchError: FAILED,
    errors.TableHeldError: CONFLICT,
    errors.SessionExpiredError: FAILED,
    errors.RankFailedError: FAILED,
    errors.StoreInUseError: CONFLICT,
    errors.DeadlineError: NO_ANSWER,
    errors.OutcomeUnknownError: NO_ANSWER,
    errors.CapacityError: FAILED,
    errors.OverloadedError: NO_ANSWER,
    errors.StoreClosedError: NO_ANSWER,
    errors.CorruptTableError: FAILED,
    errors.StorageError: FAILED,
    errors.DeviceError: DEVICE_FAILED,
}
"""Of each class of the tree. A test fails when one is missing."""

LEGEND = """Exit status:
0  done;
1  failed;
2  a bad argument or setting;
3  no such table or checkpoint;
4  no answer: server not reached, too late, overloaded, starting or stopping;
5  a conflict: it exists already, a session holds it, or the directory is in use;
70  the device failed, the server's own or the one that serves."""
"""For the help, which may join the lines."""


def exit_status(error: EmbstoreError) -> int:
    """Return the exit status of an error."""
    return EXITS.get(type(error), FAILED)
