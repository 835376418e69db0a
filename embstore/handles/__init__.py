"""Stores, tables and sessions as a user sees them: calls made into commands for an executor.

    store     a store
    table     one of its tables
    scan      the rows of a table, in order
    sessions  its look-ahead sessions, by their verbs
    parts     arguments made into parts of commands

The same classes serve an embedded store and a server's: the executor makes the difference. A call
that raises has changed nothing, unless the error says that the outcome is unknown (DeadlineError,
OutcomeUnknownError, of a server: then read t).

`timeout_s` of a call limits the wait for a server's answer, in place of the connection's timeout,
or the wait for the other ranks of a step; None: the timeout given earlier. Any thread.
"""
