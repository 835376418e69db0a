"""REST: the HTTP port for people, scripts, probes and Prometheus.

Rows are served by gRPC alone. A route that does what a verb of the .proto file does has its name,
in stats and log.
"""

from embstore_server.rest.app import make_rest

__all__ = ["make_rest"]
