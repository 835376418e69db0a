"""Profiles and hot sets as values and as files. The modules need only NumPy, because clients import
them.

profile     counts by key for each table, samples and a trace, in one file
hotset      the most accessed rows under a budget of bytes
archive     the file format of profiles and hot sets; the content of a file is never trusted
checks      the checks of profiles and hot sets
"""
