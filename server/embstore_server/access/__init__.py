"""The callers of a server, and their rights.

principals   a caller, its rights by pattern, and the names that belong to it
tokens       the file of tokens: names, hashes of secrets, rights
shares       the limits of one token on resources that all callers share
callers      finds the principal of a token or of a certificate's names

The files are read again at SIGHUP. `embstore_server.path.rights` decides whether a caller can give
a command. A server without a file of tokens treats every caller as ANYBODY, which has all rights.
"""
