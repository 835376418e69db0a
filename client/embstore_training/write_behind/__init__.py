"""A trainer that does not wait for updates: it applies each itself, and sends it meanwhile.

Arithmetic is exact and the same everywhere (docs/contract.md), so a trainer that has the rows of a
step, with their optimizer state, can compute the store's result. It applies the update to its own
copy, begins the next step at once, and the gradients travel in the background; the store applies
the same step, and both have the same bits. This is a write-behind cache of the rows in flight,
whose writes are updates.

**Which rows are here.** The rows of the last `window` steps that the loop has begun, each as of the
last of these. Only rows that are in none of them are asked for (`Sessions.read_step`), with the
step, up to `depth` steps before its turn. A row that comes is as of the last step that the store
had finished, and the store names that step. That this is right:

- At most `depth` steps are sent and not acknowledged. So when the loop begins step c, the store has
  finished c - 1 - depth or more; rows of step n are asked for when the loop begins n - depth, or
  later, so they are as of n - 1 - 2 depth or a later step.
- The window is 2 depth. A row that is asked for with step n was used by no step of this rank from
  n - 2 depth to n - 1. Therefore it lacks no update of this rank.
- Steps of other ranks may be: their gradients of the last `window` steps are kept, and those that a
  row has not seen are applied when it comes.
- A row that is here was right when it came, and gets every update since, of all ranks.

Rejected: that the store decides which rows it holds back, by the steps that are unfinished there.
It would have to know which rows each rank has; the rank knows that without asking. And to keep rows
until their step is acknowledged, and no longer: the requested rows would depend on the time of
answers.

**The store checks** a checksum of the rows that a step's gradients were computed with, all of them,
before it applies the step (`embstore.lookahead.records`).

**A crash loses** the steps that were not acknowledged. After a crash of the store they are sent
again, as the gradients of at most `depth` steps are kept (`rank_session`); after a crash of the
trainer they are trained again, from the store's rows, so to the same bits.

    slots     which slot each key of a step has: the reader's thread, far ahead
    rows      the rows in flight, read and updated: the loop's thread
    pieces    the positions of one call
    sending   finished steps on their way to the store, in order, at most `depth`
    workers   threads that ask and send
    exchange  the calls of steps
    there     rows, updates and exchange in the memory of the store's device
"""
