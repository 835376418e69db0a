"""The row cache: which rows are in fast memory, where, and which leave when others come.

`pool.py` is the cache of the tables of one layout and names its parts; `arena.py` shares
`cache_bytes` between pools; `prefetch.py` brings the rows of announced steps in ahead.
"""
