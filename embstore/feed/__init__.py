"""A trainer's loop over a session of any store, with its batches read ahead of it.

    run         the loop: a run over a session, and its steps
    read_ahead  batches taken, their keys made unique and announced, in two threads
    lease       the rank's lease, renewed while a step computes
    port        what a run needs of a store's sessions
    bags        a pooled lookup of a step's rows

It is as light as `embstore.arithmetic`, and knows no engine: a client imports it with no device and
no compiler.
"""
