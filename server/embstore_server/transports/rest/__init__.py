"""REST: the HTTP port for people, scripts, probes and Prometheus.

Only gRPC and shared memory serve rows. If a route has the effect of a verb in the .proto file, it
has that verb's name in stats and log.

The module `serving` listens on the port. It imports the other modules, such as `app` with FastAPI,
only when a request needs them.
"""
