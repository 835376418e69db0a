"""Telemetry of a server: log, metrics of calls, slow calls, traces."""
