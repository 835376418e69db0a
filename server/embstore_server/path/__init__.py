"""What every call passes, whichever transport it came by.

A call is taken apart (`calls`), permitted (`rights`), counted against its caller's share
(`embstore_server.access`, `inflight`), queued in its caller's lane (`turnstile`, `worker`) or given
a thread of its own where it takes long (`long_works`), executed at most once (`replay`), and
answered when a crash cannot take back what the answer says (`durable`, `quorum`).
"""
