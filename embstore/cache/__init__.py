"""The row cache: which rows are in fast memory, in which slot, and which are evicted for others.

`pool.py` is the cache of the tables of one layout and names its parts; `arena.py` shares
`cache_bytes` between pools; `prefetch.py` loads the rows of announced steps ahead of their use.
"""
