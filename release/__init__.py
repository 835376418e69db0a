"""What a release is made of: `python -m release`, which `make release` calls.

Everything is built of what git exports of one commit, so that neither a file that is not committed
nor the owner's umask is in it. The same commit gives the same bytes, for the same versions of what
builds (the extra `release` names them) and the same Python: times are the commit's, names are
sorted, owners and modes fixed.

    source.py       the commit, exported
    packages.py     sdist and wheels of Python
    archives.py     archives of the clients in other languages, and of the .proto file
    reference.py    the .proto file as a page
    bill.py         the bill of materials (SPDX)
    installed.py    tries a wheel where nothing else is (`make test-installed`)
"""
