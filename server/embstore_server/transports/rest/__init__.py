"""REST: the HTTP port for people, scripts, probes and Prometheus.

Rows are served by gRPC alone. A route with the effect of a verb of the .proto file has its name, in
stats and log.

`serving` is the port, and imports the rest (`app`, FastAPI) when a request needs it.
"""
