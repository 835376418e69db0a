"""Profiles from files, and what can be asked of them: the commands profile, size and hotset.

    readers   files of training samples (Criteo TSV, Parquet) as a stream of chunks
    count     chunks -> embstore.profiles.profile.Profile, in bounded memory
    plots     stats and curves of a profile, as text for the terminal, and as PNG

What pyarrow, matplotlib and plotext are needed for is loaded when it is asked for; they come with
the extra `data`.
"""
