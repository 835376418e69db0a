"""Training loops over a store, embedded or on a server.

    run           the loop over a look-ahead session, and its steps
    read_ahead    two threads, which read batches, make their keys unique and announce them
    bags          rows and gradients by key or by bag: some tables of a step are pooled, others not
    history       the history of a run over its steps, for a report
    rank_session  the session of one rank, which survives restarts of the server
    lease         the rank's lease, renewed while a step computes
    write_behind  a run that does not wait for the store: it applies each update, and sends it later
    replicas      rows at a trainer; all ranks compute the same updates as the store, bit for bit
    hotcold       batches whose rows are all hot are trained at the trainer

This package does not depend on the engine: a trainer needs no device and no compiler to import it.
"""
