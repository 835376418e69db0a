"""The REST border: what a person, a script, a probe or Prometheus asks of the server.

    guard       what is refused before any route: hosts, origins, types and sizes of bodies
    calls       a call from request to answer: deadline, queue, figures, errors
    errors      every refusal in one form
    moment      what the service is doing now
    models      what requests and replies have in common
    probes      /healthz, /readyz, /metrics
    server      GET /api/v1/server
    statistics  GET /api/v1/stats;  figures: its models
    tables      GET /api/v1/tables, .../{name}, .../{name}/stats
    durability  GET and POST /api/v1/checkpoints, POST /api/v1/flush
    cache       POST /api/v1/cache
    frequency   /api/v1/profile, /api/v1/hot-set, /api/v1/cache/warm, /api/v1/frequency

Rows are not served here: they are gRPC's. A route that means what a verb of the .proto file means
has its name, in the figures of calls as in the log.
"""

from embstore_server.admin.app import make_admin

__all__ = ["make_admin"]
