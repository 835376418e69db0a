"""The server: one process that owns a store and serves it by gRPC, and by REST to operators.

The packages from the bottom up; none imports a package above it, and the engine does not depend on
the server:

setup         settings, and how their values are read
telemetry     log, metrics of calls, slow calls, traces
access        callers, their rights, and their limits
path          the path of a call, the same for all transports
transports    gRPC, shared memory, REST
replication   a leader and its standbys
host          start and end of the process, and the store that it serves
cli           the command line; `doctor` and `sizing` are commands of their own
page          the page and files for a browser
"""
