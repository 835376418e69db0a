"""A trainer that does not wait for updates: it applies each update itself, and sends it meanwhile.

Arithmetic is exact and the same everywhere (docs/contract.md). So a trainer that has the rows of a
step, with their optimizer state, can compute the store's result. It applies the update to its own
copy and begins the next step at once, while the gradients are sent in the background. The store
applies the same step, and both have the same bits. This is a write-behind cache of the rows in
flight, whose writes are updates.

**Which rows are here.** The trainer has the rows of the last `window` steps that the loop has
begun, each in its state after the latest of these steps. Only rows that are in none of these steps
are requested (`Sessions.read_step`), up to `depth` steps before the turn of the step that needs
them. A row that arrives has its state after the last step that the store had finished, and the
answer has the number of that step. This is correct for these reasons:

- At most `depth` steps are sent and not acknowledged. So when the loop begins step c, the store has
  finished step c - 1 - depth or a later one. Rows of step n are requested when the loop begins step
  n - depth or a later one, so they have their state after step n - 1 - 2 depth or a later one.
- The window is 2 depth. A row that is requested for step n was used by no step of this rank from n
  - 2 depth to n - 1. Therefore it lacks no update of this rank.
- The row may lack updates of other ranks. The gradients of other ranks from the last `window` steps
  are kept, and those that a row lacks are applied when it arrives.
- A row that is here was right when it arrived, and gets every later update, of all ranks.

Rejected: that the store decides which rows to hold back, by the steps that are unfinished there. It
would have to know which rows each rank has; the rank knows that without asking. Also rejected: to
keep rows only until their step is acknowledged. Which rows are requested would then depend on the
timing of answers.

**The store checks** a checksum of all rows with which a step's gradients were computed, before it
applies the step (`embstore.lookahead.records`).

**A crash loses** the steps that were not acknowledged. After a crash of the store they are sent
again, as the gradients of at most `depth` steps are kept (`rank_session`). After a crash of the
trainer they are trained again, from the store's rows, and so to the same bits.

    slots      which slot each key of a step has: the reader's thread, far ahead
    rows       the rows in flight, read and updated: the loop's thread
    pieces     the positions of one call
    sending    finished steps on their way to the store, in order, at most `depth`
    workers    threads that request rows
    exchange   the calls of steps
    options    the options of such a run, checked
    on_device  rows, updates and exchange in the memory of the store's device
"""
