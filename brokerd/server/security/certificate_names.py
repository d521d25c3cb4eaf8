"""The names in a client certificate that may identify a principal: only common names and DNS names.

Parsed from the certificate itself (DER). The text that TLS libraries return is cut at a NUL, so that `boss.example`, a NUL and
`.evil.org` would become boss.example, and does not tell a DNS name from a URI or an address. The certificate has been verified
before; still, unexpected content yields no name, and parsing never reads outside of the bytes.
"""

from __future__ import annotations

import functools
import re
import ssl
from collections.abc import Iterator

_SEQUENCE, _SET, _OID, _OCTETS = 0x30, 0x31, 0x06, 0x04
_VERSION, _EXTENSIONS, _DNS_NAME = 0xA0, 0xA3, 0x82
_TEXTS = {0x0C: "utf-8", 0x13: "ascii", 0x16: "ascii", 0x14: "ascii"}  # UTF8String, PrintableString, IA5String, TeletexString
_COMMON_NAME = bytes([0x55, 0x04, 0x03])  # 2.5.4.3
_ALTERNATIVE_NAMES = bytes([0x55, 0x1D, 0x11])  # 2.5.29.17
_SUBJECT_AT = 4  # index among the fields after the version: serial number, algorithm, issuer, validity, subject
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f]")

Element = tuple[int, bytes]


@functools.lru_cache(maxsize=1_000)
def names_in_pem(pem: bytes) -> frozenset[str]:
    """As names_in_der; empty if `pem` is not a certificate in PEM."""
    try:
        return names_in_der(ssl.PEM_cert_to_DER_cert(pem.decode("ascii")))
    except ValueError:
        return frozenset()


def names_in_der(der: bytes) -> frozenset[str]:
    """Common names of the subject, and DNS names; names with a space or control character are left out."""
    try:
        names = set(_names(der))
    except (ValueError, IndexError, UnicodeDecodeError):
        return frozenset()
    return frozenset(name for name in names if name and not _UNPRINTABLE.search(name))


def _names(der: bytes) -> Iterator[str]:
    ((_, certificate),) = _elements(der)
    fields = list(_elements(next(_elements(certificate))[1]))
    if fields[0][0] == _VERSION:
        fields = fields[1:]
    for _, part in _elements(fields[_SUBJECT_AT][1]):
        for _, attribute in _elements(part):
            kind, value = _elements(attribute)
            if kind == (_OID, _COMMON_NAME) and value[0] in _TEXTS:
                yield value[1].decode(_TEXTS[value[0]])
    for tag, wrapped in fields[_SUBJECT_AT + 1 :]:
        if tag == _EXTENSIONS:
            ((_, extensions),) = _elements(wrapped)
            for _, extension in _elements(extensions):
                yield from _dns_names(list(_elements(extension)))


def _dns_names(extension: list[Element]) -> Iterator[str]:
    if extension[0] != (_OID, _ALTERNATIVE_NAMES) or extension[-1][0] != _OCTETS:
        return
    ((_, names),) = _elements(extension[-1][1])
    for tag, name in _elements(names):
        if tag == _DNS_NAME:
            yield name.decode("ascii")


def _elements(data: bytes) -> Iterator[Element]:
    """(tag, content) of each element in `data`. Raises ValueError, IndexError."""
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            if not 1 <= size <= 4:
                raise ValueError(f"a length of {size} bytes")
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise ValueError("an element is longer than what holds it")
        yield tag, data[at : at + length]
        at += length
