"""Access frequencies of a running store's rows, and their uses: counts, ranks, pins.

    accesses     accesses per table, counted for a share of the lookups
    counter      one table's counts, exact or by a sketch, in bounded memory
    recorder     calls, recorded for a sample of all keys, in bounded memory
    kept         profiles and the hot set in the store's directory
    frequencies  counts and profiles of the store's tables
    ranking      export and import of profiles
    pins         pinning of the hot set
    warming      loading of the most frequent rows ahead of lookups

These modules change which rows are in the cache, but never the content of a row.
"""
