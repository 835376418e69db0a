"""Makes profiles from files, for the commands profile, size and hotset.

    readers   files of training samples (Criteo TSV, Parquet) as a stream of chunks
        count     makes an embstore.profiles.profile.Profile from chunks, in bounded memory
    plots     stats and curves of a profile, as text for the terminal, and as PNG

Modules that need pyarrow, matplotlib or plotext are loaded when they are used; these packages come
with the extra `data`.
"""
