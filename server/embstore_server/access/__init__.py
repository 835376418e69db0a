"""The callers of a server, and their rights.

principals          a caller, its rights by pattern, and the sessions and ids that belong to it
tokens              the file of tokens: names, hashes of secrets, rights
shares              the limits of one token on resources that all callers share
callers             finds the principal of a token, or of the names in a certificate
certificates        the server's certificate, and the authorities that it trusts
certificate_names   the names in a client's certificate

The file of tokens and the certificates are read again at SIGHUP. `embstore_server.path.rights`
decides whether a caller has the right to a command. A server without a file of tokens treats every
caller as ANYBODY, which has all rights.
"""
