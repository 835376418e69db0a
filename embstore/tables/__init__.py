"""The tables of an open store: the state of tables, and the reads and writes of their rows.

tables  the tables by name, and their pools
frame   the frame of every call: calls run one at a time
owners  the owner of a session or client, as its name shows
state   one table, and the part of a table that a command uses
reads   lookups: rows by key, pooled rows, whole rows
writes  update by gradients, assign, put_rows
digest  a table's digest, maintained by block; sparse_digest: a sparse table's, in one pass
"""
