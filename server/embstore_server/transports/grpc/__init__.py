"""The gRPC port: calls, health and reflection."""
