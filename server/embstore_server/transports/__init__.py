"""The transports of calls and answers: gRPC, shared memory, REST.

Each of them passes the same call to the path of calls (`embstore_server.path.calls`).
"""
