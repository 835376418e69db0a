"""Training loops over a store, embedded or on a server.

    run           the loop over a look-ahead session, and its steps
    read_ahead    batches are read, their keys made unique and announced, in two threads
    bags          tables of one step: some pooled, each in its own way, others plain
    history       the history of a run over its steps, for a report
    rank_session  the session of one rank, which survives restarts of the server
    lease         the rank's lease, renewed while a step computes
    write_behind  a run that does not wait for updates: it applies each update, and sends it later
    replicas      rows at a trainer, updated by all ranks equally, as the store would
    hotcold       all-hot batches trained at the trainer

This package does not depend on the engine: a trainer needs no device and no compiler to import it.
"""
