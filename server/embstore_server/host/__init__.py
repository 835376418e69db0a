"""The life of a server's process, and the store that it serves."""
