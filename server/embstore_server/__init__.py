"""The server: one process that owns a store and serves it by gRPC, and by REST to operators.

    cli/        what a user types
    settings    what it was told; built once, passed down
    app         the life of the process: open, serve, drain, commit
    rpc         the gRPC border: one handler for unary calls, one for streams
    bulk        the verbs that carry arrays; control: all others
    service     what every call goes through: deadline, bytes, queue, log, metrics
    once        mutating calls that are sent again are applied once
    worker      the engine thread: it alone touches the store
    admin       the REST border; metrics: what Prometheus reads
    demo/       the main job on real input

Imports point downwards in this list. The engine knows nothing of it.
"""
