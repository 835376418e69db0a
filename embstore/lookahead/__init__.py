"""Look-ahead: a trainer says which keys its next steps need, and each step's lookup then hits.

A trainer opens a **session** over some tables and announces future steps: the unique keys of each
table, under a step number. Steps are planned in their order, and finished in their order, by an
update, a release (it only read) or a skip. A session is exact: step t + 1 reads what step t wrote.

    sessions  the verbs: open, join, announce, look up, finish a step, close
    session   a session's ranks and steps; stats: what it counts
    step      one step: what each rank announced and sent
    planner   a thread that brings the rows of announced steps into the cache
    pinning   keeps them there, as far as there is room
    noting    learns what announced steps will use; foresight: which rows leave first then
    threads   the planner's thread, and those that read rows
    handles   what waits for a step's rows or for its end
    records   whole rows for a trainer that runs ahead, and the check of those that it has
    uses      when each key of a step is used again

The trainer's side, a loop that reads its batches ahead, is `embstore_training`.
"""
