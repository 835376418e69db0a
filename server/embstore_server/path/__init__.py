"""The path of every call, the same for all transports.

A call passes these stages:

- its message becomes a command (`calls`)
- its caller's right is checked (`rights`)
- it is counted against its caller's share (`embstore_server.access`, `inflight`)
- it is queued by client (`concurrency`, `worker`), or, if it takes long, gets a thread of its own
  (`long_jobs`)
- it is executed at most once (`replay`)
- it is answered when everything that the answer reflects is durable (`durable`, `quorum`)
"""
