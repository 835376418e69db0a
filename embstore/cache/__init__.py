"""The row cache: which rows are in fast memory, where, and which go when others come. Its modules:

arena.py    cache_bytes, shared out to pools slab by slab
pool.py     the resident rows of all tables of one layout, and every batched verb on them
index.py    row key -> slot
policy.py   scores, and victims in order of score
recent.py   the last call's keys, made unique
"""
