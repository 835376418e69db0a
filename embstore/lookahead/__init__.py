"""Look-ahead: a trainer announces the keys of its next steps, so that the lookups of steps hit.

A trainer opens a **session** over some tables and announces future steps: the unique keys of each
table, under a step number. Steps are planned and finished in the order of their numbers. A step is
finished by an update, by a release (if its rows were only read) or by a skip. A session is exact:
step t + 1 reads the rows that step t wrote.

    sessions  the commands: open, join, announce, look up, finish a step, close
    session   a session's ranks and steps; stats: its counters
    step      one step: the announcement and gradients of each rank
    planner   a thread that prefetches the rows of announced steps into the cache
    pinning   pins these rows, as far as there is room
    noting    records which rows announced steps will use; foresight ranks rows by next use
    threads   the planner's thread, and the threads that read rows
    handles   handles that wait for a step's rows or for its end
    records   whole rows for a trainer that runs ahead, and the check of the trainer's rows
    uses      when each key of a step is used again

The trainer's side, a loop that reads its batches ahead, is `embstore_training`.
"""
