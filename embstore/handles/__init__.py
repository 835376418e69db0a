"""Stores, tables and sessions as the user sees them: methods that execute commands.

    store     a store
    table     one of its tables
    scan      the rows of a table, in order
    sessions  its look-ahead sessions, one method per command
    parts     arguments converted to parts of commands

The same classes serve an embedded store and a server's store: only the executor of commands
differs. A call that raises has changed nothing, unless the error means that the outcome is unknown
(DeadlineError, or OutcomeUnknownError from a server). In that case read the table's t to find out.

The argument `timeout_s` of a call limits the wait for a server's answer, or for the other ranks of
a step. None: the timeout of the connection, or of the session. Any thread can call any method.
"""
