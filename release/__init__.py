"""Builds a release: `python -m release`, which `make release` calls.

Everything is built from git's export of one commit. Therefore a release contains no uncommitted
file, and does not depend on the user's umask. The same commit gives the same bytes, if Python and
the build tools (named by the extra `release`) have the same versions: all times are that of the
commit, names are sorted, owners and modes are fixed.

    source.py       the commit, exported
    packages.py     sdist and wheels of Python
    archives.py     archives of the clients in other languages, and of the .proto file
    reference.py    the .proto file as a page
    bill.py         bills of materials (SPDX)
    images.py       images of the server, each with its bill of materials (`make images`)
    installed.py    tries a wheel in an empty environment (`make test-installed`)
"""
