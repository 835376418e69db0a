"""The tables of an open store: a table's state, and its rows read and written by commands.

tables  the tables by name, and their pools
frame   the frame of every call: one call at a time
owners  the owner of a session or a client, by its name
state   one table, and a command's share of it
reads   lookups: rows by key, pooled rows, whole rows
writes  update by gradients, assign, put_rows
digest  a table's digest, maintained by block; sparse_digest: a sparse table's, in one pass
"""
