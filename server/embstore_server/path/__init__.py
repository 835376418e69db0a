"""The path of every call, the same for all transports.

A call passes these stages:

- its message becomes a command (`calls`)
- its caller's right is checked (`rights`)
- its bytes are counted against its caller's share (`embstore_server.access`, `inflight`)
- it is queued by client (`concurrency`, `worker`), or, if it takes long, gets a thread of its own
  (`long_jobs`)
- it is executed at most once (`replay`)
- the answer is sent when all changes that it reflects are durable (`durable`, `quorum`)
"""
