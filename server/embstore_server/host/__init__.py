"""Start and end of a server's process, and the store that it serves."""
