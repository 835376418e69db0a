"""The shared-memory transport: calls by processes of the same user, on the same host.

`embstore_proto.shared_memory` defines the protocol. A **segment** is the shared memory that holds a
connection's large payloads. A **connection** has one call at a time. The **port** accepts
connections.

**Trust.** Clients are not trusted. A segment contains only data. Keys are copied before they are
read, because the client can change them at any time. Gradients are copied as well, unless the
engine reads each gradient once: for `Update` it keeps and logs only sums of gradients. Rows are
written and never read. The segment is sealed at its size, so that no client can truncate it during
a copy. Its pages are allocated when the segment is made. Therefore, if memory is short, the segment
is refused; without this, a later access could fail, and kill the process.
"""
