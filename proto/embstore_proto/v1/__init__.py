"""Version 1 of the wire protocol. Only the .proto file is written by hand."""
