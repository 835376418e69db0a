"""The start and end of a server's process, and the store that the process serves."""
