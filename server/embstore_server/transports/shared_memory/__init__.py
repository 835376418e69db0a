"""The shared-memory transport: calls by processes of the same user, on the same host.

`embstore_proto.shared_memory` defines the protocol. A **segment** is the shared memory in which a
connection's large payloads lie, a **connection** has one call at a time, the **port** accepts them.

**Trust.** Clients are not trusted. A segment holds data alone: keys, which are copied before they
are looked at, because their sender can change them at any time; gradients, which are copied as
well, unless the engine reads each of them once (`Update`: only their sums are kept, on the disk
too); and rows, which are written and never read. It is sealed at its size, so that no client can
truncate it under a copy, and its pages are taken when it is made, so that a full machine refuses it
instead of ending the process.
"""
