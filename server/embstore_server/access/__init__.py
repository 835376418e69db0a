"""Who calls, and what they may do.

principals   a caller, its rights by pattern, and what of a command or result is its own
tokens       the file that says who there is: names, secrets' hashes, rights
shares       what one token may take of what all share
callers      from a token, or a certificate's names, to the principal; read again at SIGHUP

Whether a caller may give a command says `embstore_server.path.rights`. A server without a file of
tokens takes everybody for ANYBODY, who may do everything.
"""
