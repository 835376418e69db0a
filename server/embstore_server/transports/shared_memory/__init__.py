"""The shared-memory transport: calls by processes of the same user, on the same host.

`embstore_proto.shared_memory` says what travels. An **area** is the memory that a connection's
large payloads lie in, a **connection** has one call at a time, the **port** accepts them.

**Whom it trusts.** Nobody. An area holds data alone: keys, which are copied before they are looked
at, because their sender can change them at any time; gradients, which are copied as well, unless
the engine reads each of them once (`Update`: all that becomes of them, on the disk too, is their
sums); and rows, which are written and never read. It is sealed at its size, so that nobody can cut
it off under a copy, and its pages are taken when it is made, so that a full machine refuses it
instead of ending the process.
"""
