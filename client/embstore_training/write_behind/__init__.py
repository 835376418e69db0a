"""A trainer that does not wait for the store: it applies each update itself, and sends the update
in the background.

Arithmetic is exact and the same everywhere (docs/contract.md). So a trainer that has the rows of a
step, with their optimizer state, can compute the store's result. It applies the update to its own
copy and begins the next step at once, while the gradients are sent in the background. The store
applies the same step, and its rows have the same bits as the trainer's rows. This is a write-behind
cache of the rows in flight, whose writes are updates.

**Which rows are here.** The trainer has the rows of the last `window` steps that the loop has
begun, each in the row's state after the latest of these steps. Only rows that no such step uses are
requested (`Sessions.read_step`), up to `depth` steps before the loop begins the step that needs
them. A row arrives in its state after the last step that the store had finished, and the answer has
the number of that step. A row that is requested by these rules lacks no update when it is used, for
these reasons:

- At most `depth` steps are sent and not acknowledged. So when the loop begins step c, the store has
  finished step c - 1 - depth or a later one. Rows of step n are requested when the loop begins step
  n - depth or a later one, so these rows have their state after step n - 1 - 2 * depth or a later
  one.
- The `window` is 2 * depth. A row that is requested for step n was used by no step of this rank
  from step n - 2 * depth to step n - 1. Therefore the row lacks no update of this rank.
- The row may lack updates of other ranks. The trainer keeps the gradients of other ranks from the
  last `window` steps. When a row arrives, the trainer applies the gradients that the row lacks.
- A row at the trainer was right when it arrived, and gets every later update of all ranks.

Rejected: the store decides which rows not to send, by the steps that are unfinished at the store.
It would have to know which rows each rank has, and the rank knows this without asking. Also
rejected: the trainer keeps rows only until their step is acknowledged. Then the timing of answers
would determine which rows are requested.

**The store checks** each step before it applies the step, by a checksum of all rows with which the
step's gradients were computed (`embstore.lookahead.records`).

**A crash loses** the steps that were not acknowledged, until they are repeated. After a crash of
the store the trainer sends these steps again, because it keeps their gradients, of at most `depth`
steps (`rank_session`). After a crash of the trainer these steps are trained again from the store's
rows, and so to the same bits.

    slots      the slot of each key of a step, which the reader's thread assigns, far ahead
    rows       the rows in flight, which the loop's thread reads and updates
    pieces     the positions of a step's rows, in pieces that fit into one call
    sending    finished steps on their way to the store, in order, at most `depth`
    workers    threads that request rows
    exchange   the calls of steps
    options    the options of such a run, checked
    on_device  rows, updates and exchange in the memory of the store's device
"""
