"""How often rows are accessed, and what follows from it: profiles, recordings, sizes, hot sets.

    profile     counts by key of each table, samples and a trace, in one file
    hotset      the most accessed rows under a budget of bytes
    counter     accesses counted by key, exactly or by a sketch, in bounded memory
    recorder    calls recorded for a sample of all keys, in bounded memory
    levels      a row's count as the cache compares it
    sizing      hit rates by cache size, from a profile
    simulate    the loops behind them

`profile` and `hotset` need NumPy alone, for a client imports them; so nothing is imported here.
"""
