"""The row cache: it decides which rows are in fast memory, in which slots, and which rows leave.

`pool.py` is the cache of the tables of one layout, and lists the parts of a pool; `arena.py` shares
`cache_bytes` between pools; `prefetch.py` loads the rows of announced steps ahead of their use.
"""
