"""Certificates for tests of TLS, created on the spot: an authority, and certificates that it signs. They have the RFC 5280
extensions (key identifiers, key usage), without which ssl rejects them from Python 3.13 on."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Issued(NamedTuple):
    """A certificate and its key, as PEM files."""

    certificate_file: str
    key_file: str


class Authority:
    """A certificate authority whose certificate is in `ca_file`."""

    def __init__(self, directory: Path, name: str = "brokerd test authority") -> None:
        self._directory = directory
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(self._name, self._name, self._key, self._key, -_DAY, _DAY, is_authority=True)
        certificate = builder.sign(self._key, hashes.SHA256())
        self.ca_file = _write(directory / f"{name.replace(' ', '-')}.ca.pem", certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, common_name: str, *names: str, is_expired: bool = False) -> Issued:
        """A certificate for `common_name` with `names` (DNS names or addresses) as alternative names."""
        key = ec.generate_private_key(ec.SECP256R1())
        first, last = (-2 * _DAY, -_DAY) if is_expired else (-_DAY, _DAY)
        builder = _with_names(_builder(_name(common_name), self._name, key, self._key, first, last), names)
        return _files(self._directory, common_name, builder.sign(self._key, hashes.SHA256()), key)


def self_signed(directory: Path, common_name: str, *names: str) -> Issued:
    """A self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _with_names(_builder(_name(common_name), _name(common_name), key, key, -_DAY, _DAY, is_authority=True), names)
    return _files(directory, f"self-signed-{common_name}", builder.sign(key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    first: datetime.timedelta,
    last: datetime.timedelta,
    *,
    is_authority: bool = False,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + first)
        .not_valid_after(now + last)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(_usage(is_authority=is_authority), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _with_names(builder: x509.CertificateBuilder, names: tuple[str, ...]) -> x509.CertificateBuilder:
    return builder.add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _files(directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Issued:
    key_bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Issued(
        _write(directory / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM)),
        _write(directory / f"{name}.key", key_bytes),
    )


def _write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)
