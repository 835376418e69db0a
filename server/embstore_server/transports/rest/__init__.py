"""REST: the HTTP port for people, scripts, probes and Prometheus.

Only gRPC and shared memory serve rows. If a route has the effect of a verb in the .proto file, it
has that verb's name in stats and log.

`serving` is the port; it imports the other modules (`app`, with FastAPI) only when a request needs
them.
"""
