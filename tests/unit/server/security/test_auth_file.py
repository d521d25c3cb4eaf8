"""The auth file: what is accepted, and that every refusal names the principal and contains no credential."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from brokerd.errors import ConfigError
from brokerd.server.security.credentials import CREDENTIALS_MAX, load_auth_file, parse_identities
from brokerd.server.security.tokens import hash_token
from brokerd.server.security.topic_authorizer import Right
from tests.support.identities import AUTH_FILE

HASH = hash_token("canary-" + "0123456789abcdefghijklmnop")
OTHER = hash_token("other-" + "0123456789abcdefghijklmnop")


def test_principals_have_what_the_file_gives_them(tmp_path: Path) -> None:
    path = tmp_path / "auth.toml"
    path.write_text(AUTH_FILE)
    identities = load_auth_file(str(path))
    assert set(identities.principals) == {"reader", "writer", "boss", "outsider"}
    assert len(identities.token_hashes) == 5
    assert identities.certificate_names == {"reader.example": "reader"}
    assert identities.principals["writer"].rights.allows(Right.WRITE, "events-1")
    assert not identities.principals["writer"].rights.allows(Right.READ, "events-1")
    assert identities.principals["boss"].rights.is_unlimited
    allowed = {name: identities.principals[name].rights.allows_group for name in ("reader", "writer", "boss")}
    assert [allowed["reader"](name) for name in ("own", "owned", "placed", "placed-2", "o")] == [True, True, True, False, False]
    assert (allowed["writer"]("own"), allowed["boss"]("own")) == (False, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "it has no principals: give at least one [principals.NAME]"),
        ("[principals]", "it has no principals"),
        ("[users.a]", "unknown table 'users': principals stand in [principals.NAME]"),
        (f'[principals."a b"]\ntokens=["{HASH}"]', "'a b' is no name for a principal"),
        ("[principals.a]\nread=['x']", "principal 'a' has no credentials: give it tokens or certificates"),
        (f'[principals.a]\ntokens=["{HASH}"]\nreads=["x"]', "principal 'a': unknown key 'reads': did you mean 'read'?"),
        (f'[principals.a]\ntokens="{HASH}"', "principal 'a': tokens must be a list of texts"),
        (f'[principals.a]\ntokens=["{HASH}"]\nread=[1]', "principal 'a': read must be a list of texts"),
        ('[principals.a]\ntokens=["plain-token-plain-token-plain-token"]', "use what 'brokerd hash-token' prints"),
        (f'[principals.a]\ntokens=["{HASH.upper()}"]', "use what 'brokerd hash-token' prints"),
        (f'[principals.a]\ntokens=["{HASH}"]\nread=["ev*nts"]', "'ev*nts' is no topic name and no prefix"),
        (f'[principals.a]\ntokens=["{HASH}"]\ngroups=["a*b"]', "'a*b' is no group name and no prefix"),
        (f'[principals.a]\ntokens=["{HASH}"]\ngroups="etl"', "principal 'a': groups must be a list of texts"),
        (f'[principals.a]\ntokens=["{HASH}"]\nread=["../x"]', "'../x' is no topic name and no prefix"),
        (f'[principals.a]\ntokens=["{HASH}"]\n[principals.b]\ntokens=["{HASH}"]', "'a' and 'b' have a token in common"),
        ("[principals]\na = 1", "principal 'a' must be a table"),
    ],
)
def test_a_mistake_names_the_principal(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_identities(tomllib.loads(text))
    assert expected in caught.value.message
    assert caught.value.message.count("principal 'a'") <= 1
    assert "plain-token-plain" not in caught.value.message
    assert HASH[7:] not in caught.value.message.lower()


def test_a_file_that_is_not_toml_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "auth.toml"
    path.write_text("[principals.a]\ntokens = canary-token-canary-token-canary\n")
    with pytest.raises(ConfigError, match=r"is not TOML \(at line 2, column 10\)$") as caught:
        load_auth_file(str(path))
    assert "canary" not in caught.value.message
    for unreadable in (f"a = {'9' * 5_000}", f"a = {'[' * 5_000}"):
        path.write_text(unreadable)
        with pytest.raises(ConfigError, match=r"auth\.toml is not TOML$"):
            load_auth_file(str(path))
    with pytest.raises(ConfigError, match="No such file"):
        load_auth_file(str(tmp_path / "missing"))


def test_the_same_credential_may_stand_twice_under_one_principal() -> None:
    identities = parse_identities({"principals": {"a": {"tokens": [HASH, HASH, OTHER]}}})
    assert [owner for _, owner in identities.token_hashes] == ["a", "a"]


def test_too_many_tokens_are_refused() -> None:
    tokens = [hash_token(str(number)) for number in range(CREDENTIALS_MAX + 1)]
    with pytest.raises(ConfigError, match=f"more than the {CREDENTIALS_MAX}"):
        parse_identities({"principals": {"a": {"tokens": tokens}}})
