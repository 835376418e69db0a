"""A leader and its standbys: what each is sent, following, promotion."""
