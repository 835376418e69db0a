"""The names in a client's certificate, by RFC 6125.

If the subject alternative names contain names of callers (DNS names, mail addresses), only these
names count; otherwise the common names count. A name that occurs twice counts once.

A certificate arrives as DER, verified by the TLS of its port. Both ports use this reader, because
gRPC and Python's `ssl` return different names for a certificate: if there are two common names, one
of these libraries returns only the first.
"""

import ssl
from collections.abc import Iterator
from functools import lru_cache

_COMMON_NAME, _ALTERNATIVE_NAMES = b"\x55\x04\x03", b"\x55\x1d\x11"
"""The object identifiers 2.5.4.3 (common name) and 2.5.29.17 (alternative names), as in DER."""
_MAIL, _DNS = 0x81, 0x82
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_SUBJECT = 4
"""The index of the subject among a certificate's fields, not counting the version."""
_WIDE = 0x1E
"""The tag of a text in UTF-16 (BMPString). Other texts are read as UTF-8, because names of tokens
are ASCII."""


@lru_cache(maxsize=1024)
def names_in_pem(pem: bytes) -> tuple[str, ...]:
    """Return the names in a certificate in PEM form, each name once."""
    return names_in(ssl.PEM_cert_to_DER_cert(pem.decode("ascii")))


def names_in(der: bytes) -> tuple[str, ...]:
    """Return the names in a certificate, each name once; () if the bytes are no certificate."""
    try:
        ((_, certificate),) = _elements(der)
        fields = list(_elements(next(_elements(certificate))[1]))
        if fields[0][0] == _VERSION:
            del fields[0]
        extensions = next((content for tag, content in fields if tag == _EXTENSIONS), b"")
        names = list(_alternative_names(extensions)) or list(_common_names(fields[_SUBJECT][1]))
    except (IndexError, ValueError, StopIteration):
        return ()
    return tuple(dict.fromkeys(names))


def _alternative_names(extensions: bytes) -> Iterator[str]:
    for _, one in _elements(extensions):
        for _, extension in _elements(one):
            (_, identifier), *_, (_, value) = _elements(extension)
            if identifier == _ALTERNATIVE_NAMES:
                ((_, names),) = _elements(value)
                yield from (_text(n, 0) for tag, n in _elements(names) if tag in (_MAIL, _DNS))


def _common_names(subject: bytes) -> Iterator[str]:
    for _, group in _elements(subject):
        for _, attribute in _elements(group):
            (_, identifier), (tag, value) = _elements(attribute)
            if identifier == _COMMON_NAME:
                yield _text(value, tag)


def _text(content: bytes, tag: int) -> str:
    return content.decode("utf-16-be" if tag == _WIDE else "utf-8", "replace")


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each element in a sequence of DER elements."""
    at = 0
    while at < len(content):
        tag, length = content[at], content[at + 1]
        at += 2
        if length & 0x80:
            count = length & 0x7F
            at, length = at + count, int.from_bytes(content[at : at + count], "big")
        yield tag, content[at : at + length]
        at += length
