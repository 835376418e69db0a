"""One table for every error: class, gRPC code, HTTP status, exit status, and whether to retry.

The table is used in both directions. The server answers an EmbstoreError with its code and message,
and with the name of its class in the trailing metadata. The client raises an error of that class,
and a command ends with the exit status of the class. Any other exception is a bug in the server:
the server logs it, and answers INTERNAL "internal error" without the exception's text.
"""

from collections.abc import Iterable
from typing import NamedTuple

from grpc import StatusCode

from embstore import errors
from embstore.errors import EmbstoreError

ERROR_METADATA = "embstore-error"
"""The key of the trailing metadata with the name of the error's class."""

NOT_AGAIN_METADATA = "embstore-not-again"
"""The key in the trailing metadata by which a server marks an error that no retry can cure, because
the store has failed."""

INTERNAL_MESSAGE = "internal error"

_MESSAGE_CHARACTERS_MAX = 2000
_MESSAGE_BYTES_MAX = 6000
"""Bounds of the message in a status: gRPC limits headers to 8 KiB, and percent-encodes the message,
so a byte that is not printable ASCII takes three bytes."""


class Answer(NamedTuple):
    """How an error class is answered."""

    code: StatusCode
    http: int
    exit: int
    """The exit status of a command that ends with the error; see `embstore_server.cli.exits`."""
    retried: bool = False
    """Whether the call has changed nothing, and may succeed if the client sends it again."""


ANSWERS: dict[type[EmbstoreError], Answer] = {
    errors.InvalidArgumentError: Answer(StatusCode.INVALID_ARGUMENT, 400, 2),
    errors.UnauthenticatedError: Answer(StatusCode.UNAUTHENTICATED, 401, 1),
    errors.PermissionDeniedError: Answer(StatusCode.PERMISSION_DENIED, 403, 1),
    errors.TableNotFoundError: Answer(StatusCode.NOT_FOUND, 404, 3),
    errors.CheckpointNotFoundError: Answer(StatusCode.NOT_FOUND, 404, 3),
    errors.StepNotFoundError: Answer(StatusCode.NOT_FOUND, 404, 3),
    errors.TableExistsError: Answer(StatusCode.ALREADY_EXISTS, 409, 5),
    errors.CheckpointExistsError: Answer(StatusCode.ALREADY_EXISTS, 409, 5),
    errors.CheckpointProtectedError: Answer(StatusCode.FAILED_PRECONDITION, 409, 5),
    errors.TableMismatchError: Answer(StatusCode.FAILED_PRECONDITION, 412, 1),
    errors.TableHeldError: Answer(StatusCode.FAILED_PRECONDITION, 409, 5),
    errors.SessionExpiredError: Answer(StatusCode.ABORTED, 409, 1),
    errors.LeaseExpiredError: Answer(StatusCode.ABORTED, 409, 1),
    errors.RankFailedError: Answer(StatusCode.ABORTED, 409, 1),
    errors.ReplicaMismatchError: Answer(StatusCode.ABORTED, 409, 1),
    errors.StoreInUseError: Answer(StatusCode.FAILED_PRECONDITION, 409, 5),
    errors.WritesPausedError: Answer(StatusCode.ABORTED, 409, 4),
    errors.MovedError: Answer(StatusCode.FAILED_PRECONDITION, 409, 4),
    errors.DeadlineError: Answer(StatusCode.DEADLINE_EXCEEDED, 504, 4),
    errors.OutcomeUnknownError: Answer(StatusCode.UNKNOWN, 500, 4),
    errors.CapacityError: Answer(StatusCode.RESOURCE_EXHAUSTED, 507, 1),
    errors.OverloadedError: Answer(StatusCode.UNAVAILABLE, 503, 4, retried=True),
    errors.StoreClosedError: Answer(StatusCode.UNAVAILABLE, 503, 4, retried=True),
    errors.CorruptTableError: Answer(StatusCode.DATA_LOSS, 500, 1),
    errors.StorageError: Answer(StatusCode.INTERNAL, 500, 1),
    errors.DeviceError: Answer(StatusCode.INTERNAL, 500, 70),
}

_CLASSES = {kind.__name__: kind for kind in ANSWERS}


def answer_of(error: BaseException) -> Answer:
    """Return how an error is answered; an exception that is no EmbstoreError is answered as
    INTERNAL."""
    known = ANSWERS.get(type(error)) if isinstance(error, EmbstoreError) else None
    return known or Answer(StatusCode.INTERNAL, 500, 1)


def message_of(error: BaseException) -> str:
    """Return the text of an error that a caller is allowed to see."""
    if type(error) not in ANSWERS:
        return INTERNAL_MESSAGE
    text = str(error)
    fitting = _fitting(text)
    return text if fitting == len(text) else f"{text[:fitting]}... ({len(text)} characters)"


def _fitting(text: str) -> int:
    """Return the number of characters of a text that fit into a status."""
    room = _MESSAGE_BYTES_MAX
    for count, character in enumerate(text):
        is_plain = " " <= character <= "~" and character != "%"
        room -= 1 if is_plain else 3 * len(character.encode(errors="surrogatepass"))
        if room < 0 or count == _MESSAGE_CHARACTERS_MAX:
            return count
    return len(text)


def error_of(
    code: StatusCode, details: str | None, trailing: Iterable[tuple[str, str | bytes]] | None
) -> EmbstoreError | None:
    """Return the error of a server's status, or None if the status is not from embstore's server.

    A status without a name comes from gRPC itself: no connection, a deadline, a cancelled call.
    """
    for key, value in trailing or ():
        if key == ERROR_METADATA:
            name = value.decode() if isinstance(value, bytes) else value
            return _CLASSES.get(name, EmbstoreError)(details or name)
    if code is StatusCode.INTERNAL and details == INTERNAL_MESSAGE:
        return EmbstoreError(f"the server had an {INTERNAL_MESSAGE}; its log says which")
    return None
