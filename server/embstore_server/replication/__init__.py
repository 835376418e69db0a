"""Replication between a leader and its standbys: sending, following, promotion."""
