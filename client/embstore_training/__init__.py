"""Training loops over a store, embedded or on a server.

    run           the loop over a look-ahead session, and its steps
    read_ahead    batches taken, their keys made unique and announced, in two threads
    bags          of a step's tables, pooled in their own ways, or plain
    history       the history of a run over its steps, for a report
    rank_session  the session as one rank has it, also over restarts of the server
    lease         the rank's lease, renewed while a step computes
    write_behind  a run that does not wait for updates: applied here, and sent meanwhile
    replicas      rows at a trainer, updated as the store would, by all ranks alike
    hotcold       all-hot batches trained at the trainer

They know no engine: a trainer imports them with no device and no compiler.
"""
