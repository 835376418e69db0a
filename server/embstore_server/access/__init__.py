"""The callers of a server, and their rights.

principals   a caller, its rights by pattern, and the names that belong to it
tokens       the file of tokens: names, hashes of secrets, rights
shares       the limits of one token on resources that all share
callers      from a token, or a certificate's names, to the principal; read again at SIGHUP

`embstore_server.path.rights` decides whether a caller may give a command. A server without a file
of tokens takes every caller for ANYBODY, which has all rights.
"""
