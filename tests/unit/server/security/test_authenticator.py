"""Authentication by token, by certificate, or not at all."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from brokerd.errors import ConfigError
from brokerd.server.security.authenticator import Authenticator, UnauthenticatedError
from brokerd.server.security.credentials import parse_identities
from brokerd.server.security.tokens import check_token, generate_token, hash_token, is_token_hash
from tests.support.certificates import Authority
from tests.support.identities import AUTH_FILE, TOKENS, UNKNOWN_TOKEN

IDENTITIES = parse_identities(tomllib.loads(AUTH_FILE))


def bearer(token: str) -> list[tuple[str, str | bytes]]:
    return [("user-agent", "x"), ("authorization", f"Bearer {token}")]


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_is_its_principal(name: str) -> None:
    assert Authenticator(IDENTITIES, needs_certificate=False).principal(bearer(TOKENS[name])).name == name


def test_a_principal_may_have_two_tokens_at_a_time() -> None:
    assert Authenticator(IDENTITIES, needs_certificate=False).principal(bearer("second-" + TOKENS["writer"])).name == "writer"


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer ")],
        [("authorization", f"Basic {TOKENS['boss']}")],
        [("authorization", TOKENS["boss"])],
        [("authorization", f"Bearer {TOKENS['boss']}".encode())],
        [("authorization", f"Bearer {TOKENS['boss'][:-1]}")],
        [("authorization", f"Bearer {hash_token(TOKENS['boss'])}")],
        [("authorization", f"Bearer {UNKNOWN_TOKEN}")],
        [("authorization", "Bearer " + "x" * 100_000)],
        [("authorization", f"Bearer {TOKENS['boss']}"), ("authorization", f"Bearer {TOKENS['reader']}")],
        [("x-principal", "boss")],
    ],
)
def test_who_shows_no_right_token_is_refused_without_an_echo(metadata: Sequence[tuple[str, str | bytes]]) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        Authenticator(IDENTITIES, needs_certificate=False).principal(metadata)
    assert not any(token in caught.value.message for token in (*TOKENS.values(), UNKNOWN_TOKEN))


def shown(directory: Path, common_name: str, *names: str) -> dict[str, list[bytes]]:
    """The auth context of a connection with a certificate of these names."""
    return {"x509_pem_cert": [Path(Authority(directory).issue(common_name, *names).certificate_file).read_bytes()]}


@pytest.mark.parametrize("names", [("reader.example",), ("other", "reader.example")])
def test_a_certificate_is_its_principal(tmp_path: Path, names: tuple[str, ...]) -> None:
    authenticator = Authenticator(IDENTITIES, needs_certificate=True)
    assert authenticator.principal([], shown(tmp_path, *names)).name == "reader"
    for peer in (shown(tmp_path, "stranger.example", "x"), {"x509_pem_cert": [b"\xff"]}):
        with pytest.raises(UnauthenticatedError, match="belongs to no principal"):
            authenticator.principal([], peer)


def test_a_wrong_token_never_falls_back_to_the_certificate(tmp_path: Path) -> None:
    authenticator = Authenticator(IDENTITIES, needs_certificate=True)
    peer = shown(tmp_path, "reader.example")
    with pytest.raises(UnauthenticatedError):
        authenticator.principal(bearer(UNKNOWN_TOKEN), peer)
    assert authenticator.principal(bearer(TOKENS["boss"]), peer).name == "boss"


def test_without_an_auth_file_a_checked_certificate_is_enough_and_without_both_anybody_may() -> None:
    assert Authenticator(None, needs_certificate=True).principal([]).rights.is_unlimited
    assert Authenticator(None, needs_certificate=False).principal([]).rights.is_unlimited
    assert not Authenticator(None, needs_certificate=True).is_open
    assert Authenticator(None, needs_certificate=False).is_open


def test_tokens_are_long_and_random() -> None:
    assert len({generate_token() for _ in range(100)}) == 100
    check_token(generate_token())
    assert is_token_hash(hash_token(generate_token()))
    for weak in ("", "password", "x" * 40, "a b" * 20, "0123456789" * 5, "é" * 40, "x" * 600):
        with pytest.raises(ConfigError) as caught:
            check_token(weak)
        assert not weak or weak not in caught.value.message
