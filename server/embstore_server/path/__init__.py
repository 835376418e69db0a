"""The path of every call, the same for all transports.

A call is taken apart (`calls`), permitted (`rights`), counted against its caller's share
(`embstore_server.access`, `inflight`), queued by client (`concurrency`, `worker`) or given
a thread of its own where it takes long (`long_jobs`), executed at most once (`replay`), and
answered when everything that the answer reflects is durable (`durable`, `quorum`).
"""
