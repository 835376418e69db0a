"""The server: one process that owns a store and serves it by gRPC, and by REST to operators.

`app` is the life of the process, `service` what every call goes through, whether it came by `rpc`
or `rest`. Imports point from these down to `worker`, the engine thread. The engine knows nothing of
the server.
"""
