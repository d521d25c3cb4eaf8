"""Only whole common names and DNS names identify the principal of a certificate."""

from __future__ import annotations

import datetime
import ipaddress
import random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from brokerd.server.security.authenticator import names_in_der, names_in_pem

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(common_names: list[str], others: list[x509.GeneralName]) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text) for text in common_names])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(KEY.public_key())
    builder = builder.serial_number(7).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    if others:
        builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
    return builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True).sign(KEY, hashes.SHA256())


@pytest.mark.parametrize(
    ("common_names", "others", "expected"),
    [
        (["etl"], [], {"etl"}),
        ([], [x509.DNSName("etl.example")], {"etl.example"}),
        (["etl", "zweiter-n\u00e4me"], [x509.DNSName("a"), x509.DNSName("b")], {"etl", "zweiter-n\u00e4me", "a", "b"}),
        (["boss.example\0.evil.org"], [], set()),
        (["x"], [x509.DNSName("boss.example\0.evil.org")], {"x"}),
        (["a b", "c\nd"], [], set()),
        ([], [x509.UniformResourceIdentifier("boss.example")], set()),
        ([], [x509.RFC822Name("boss.example"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))], set()),
        ([], [x509.DirectoryName(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "boss")])), x509.DNSName("a")], {"a"}),
    ],
)
def test_whole_common_names_and_dns_names_alone_count(
    common_names: list[str], others: list[x509.GeneralName], expected: set[str]
) -> None:
    made = certificate(common_names, others)
    assert names_in_der(made.public_bytes(Encoding.DER)) == expected
    assert names_in_pem(made.public_bytes(Encoding.PEM)) == expected


def test_what_is_no_certificate_names_nobody() -> None:
    whole = certificate(["etl"], [x509.DNSName("a")]).public_bytes(Encoding.DER)
    for end in range(len(whole)):
        assert names_in_der(whole[:end]) == set()
    rng = random.Random(5)
    for _ in range(2_000):
        spoilt = bytearray(whole)
        spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
        names_in_der(bytes(spoilt))
    for pem in (b"", b"\xff", b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"):
        assert names_in_pem(pem) == set()
