"""Profiles and hot sets as values and as files. They need NumPy alone: clients import them.

profile     counts by key of each table, samples and a trace, in one file
hotset      the most accessed rows under a budget of bytes
archive     the files of both, whose content is never trusted
checks      the invariants of both
"""
