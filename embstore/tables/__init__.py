"""The tables of an open store: what one is, and how commands read and write its rows.

tables  the tables by name, and their pools
frame   one call at a time
owners  whose a session or a client is, by its name
state   one table, and a command's share of it
reads   lookups: rows by key, pooled rows, whole rows
writes  update by gradients, assign, put_rows
digest  a table's digest, kept up to date by block; sparse_digest, of a sparse table, in one pass
"""
