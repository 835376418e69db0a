"""The server: one process that owns a store and serves it by gRPC, and by REST to operators.

    cli/        what a user types
    demo/       the main job on real input
    launch      a server of one's own, as a child process
    app         the life of the process: open, serve, drain, commit
    borders     both ports: gRPC with health and reflection, REST
    admin/      the REST border
    rpc         the gRPC border: one handler for unary calls, one for streams
    bulk        the verbs that carry arrays; control: all others
    service     what every call goes through: queue, log, metrics
    inflight    the bytes of calls held at once, and their bound
    once        mutating calls that are sent again are applied once
    answers     what the engine thread brings back: a value, and which state it is of
    worker      the engine thread: it owns the store
    metrics/    what Prometheus reads
    logs        one line for an event
    settings    what the process was told; parsing: how values are written

Imports point downwards in this list. The engine knows nothing of it.
"""
