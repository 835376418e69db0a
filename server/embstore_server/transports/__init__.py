"""The transports of calls and answers: gRPC, shared memory, REST. Each brings the same call to the
path (`embstore_server.path.calls`)."""
