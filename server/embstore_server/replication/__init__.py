"""A leader and its standbys: sending, following, promotion."""
