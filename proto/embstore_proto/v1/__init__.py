"""Version 1 of the wire. Only the .proto file is written by hand."""
