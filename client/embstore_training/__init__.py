"""Training loops over a store, embedded or on a server.

    run           the loop over a look-ahead session, and its steps
    read_ahead    batches taken, their keys made unique and announced, in two threads
    rank_session  the session as one rank has it, also over restarts of the server
    lease         the rank's lease, renewed while a step computes
    hotcold       all-hot batches trained at the trainer

They know no engine: a trainer imports them with no device and no compiler.
"""
