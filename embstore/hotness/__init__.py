"""Access frequencies of a running store's rows, and their uses: counts, ranks, pins.

    accesses     accesses counted by table, a share of the lookups
    counter      one table's counts, exactly or by a sketch, in bounded memory
    recorder     calls recorded for a sample of all keys, in bounded memory
    kept         profiles and the hot set in the store's directory
    frequencies  counts and profiles of the store's tables
    ranking      profiles exported and imported
    pins         the hot set, pinned
    warming      the most frequent rows brought in ahead

The rows' places depend on this, and no bit of any row does.
"""
