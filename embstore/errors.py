"""The error tree of embstore: one class for each reaction that a caller can have.

* EmbstoreError
  + InvalidArgumentError (also a ValueError)      shape, dtype, range, non-finite gradient, bad name
  + UnauthenticatedError                          no token, or one that the server does not know
  + PermissionDeniedError                         a write to a read-only store, or to a standby; a
                                                  right that the caller lacks
  + TableNotFoundError (also a LookupError)       no table of that name
  + CheckpointNotFoundError (also a LookupError)  no kept checkpoint of that label
  + StepNotFoundError (also a LookupError)        a step that was never announced, or is forgotten
  + TableExistsError                              a table is created with another identity
  + CheckpointExistsError                         the label was used before
  + CheckpointProtectedError                      a protected checkpoint would be lost
  + TableMismatchError                            another format, version or endianness
  + TableHeldError                                a session holds the table, the rank or the name
  + SessionExpiredError                           a session or scan was closed, or ran out, or was
                                                  lost
    - LeaseExpiredError                           the only rank of a session was silent for too long
  + RankFailedError                               a rank of a session's step died or stalled
  + ReplicaMismatchError                          rows at a trainer differ from the store's
  + StoreInUseError                               another process holds the directory
  + WritesPausedError                             a shard takes no writes for a moment
  + MovedError                                    a shard has another map than the caller
  + DeadlineError                                 no answer in time
  + OutcomeUnknownError                           the server restarted during a mutating call
  + CapacityError                                 disk, cache, index or a named limit is full
  + OverloadedError                               the server's queue is full; back off, then retry
  + StoreClosedError                              after close(), or after a failure
  + CorruptTableError                             bad magic, checksum or length in a file
  + StorageError (also an OSError)                the system refused a file operation
  + DeviceError                                   a kernel or its device failed

A message contains the expected value, the value that was found, and the table. Unless a class's
docstring says otherwise, a call that raised has changed nothing.
"""


class EmbstoreError(Exception):
    """Base of every error that embstore raises on purpose."""


class InvalidArgumentError(EmbstoreError, ValueError):
    """An argument has a wrong shape, dtype, range or value. A retry needs other arguments."""


class UnauthenticatedError(EmbstoreError):
    """The call had no token, or one that the server does not know."""


class PermissionDeniedError(EmbstoreError):
    """The store takes no writes: it is read-only, a standby, or a leader that was replaced. Or the
    caller lacks the right that the call needs; the message names the right and its object."""


class TableNotFoundError(EmbstoreError, LookupError):
    """No table of this name exists, or it has been dropped."""


class CheckpointNotFoundError(EmbstoreError, LookupError):
    """No checkpoint of this label is kept."""


class StepNotFoundError(EmbstoreError, LookupError):
    """No step of this number was announced, or the step was finished so long ago that the store has
    forgotten it."""


class TableExistsError(EmbstoreError):
    """A table of this name exists with another identity or another number of rows."""


class CheckpointExistsError(EmbstoreError):
    """A checkpoint of this label exists already. A label can be used only once."""


class CheckpointProtectedError(EmbstoreError):
    """The call would lose a checkpoint that is protected. Make it routine first."""


class TableMismatchError(EmbstoreError):
    """Files and program disagree about the format, its version or the byte order."""


class TableHeldError(EmbstoreError):
    """Another session is the only writer of the table, or another client has the rank or the
    session's name."""


class SessionExpiredError(EmbstoreError):
    """The session was closed, its lease ran out, or its server ended; a session that is opened with
    the same name resumes it. Or a scan has ended, and the caller must open another scan."""


class LeaseExpiredError(SessionExpiredError):
    """The only rank of the session was silent for longer than its lease. A loop over the session
    opens the session again by itself, and continues if no other client has written to the session's
    tables."""


class RankFailedError(EmbstoreError):
    """A rank of the session died or stalled; the message names it. Open the session again."""


class ReplicaMismatchError(EmbstoreError):
    """A trainer has computed with rows that differ from the store's. The step was not applied, and
    its session has ended; the store's rows are correct."""


class StoreInUseError(EmbstoreError):
    """Another process, or another Store in this process, has locked the directory."""


class WritesPausedError(EmbstoreError):
    """While partitions move or a checkpoint is kept, a shard of a cluster refuses commands that
    write. A client of the cluster sends the command again by itself, until its timeout."""


class MovedError(EmbstoreError):
    """The command was split between shards by another shard map than the shard's own. A client of
    the cluster asks for the newest map, and sends the command again, split by that map."""


class DeadlineError(EmbstoreError):
    """No answer arrived in time. It is unknown whether a mutating call was applied: read the
    table's t, its number of updates, to find out."""


class OutcomeUnknownError(EmbstoreError):
    """The server was restarted or restored during the call or since the previous call. Read the
    table's t, its number of updates, to find out whether the call was applied. Or some shards of a
    cluster have executed the call, and others have not; the message says what to do."""


class CapacityError(EmbstoreError):
    """The disk, the cache or a named limit is full. Retry after making room."""


class OverloadedError(EmbstoreError):
    """The server's queue is full. Wait, then retry."""


class StoreClosedError(EmbstoreError):
    """The store is closed, or a failure closed it; open it again."""


class CorruptTableError(EmbstoreError):
    """A file contains bytes that were never written there."""


class StorageError(EmbstoreError, OSError):
    """The operating system refused a file operation. The store may have closed itself."""


class DeviceError(EmbstoreError):
    """A kernel or the device it runs on failed. The store has closed itself."""
