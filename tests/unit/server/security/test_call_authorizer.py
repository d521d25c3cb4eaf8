"""Whether a call is still its caller's after the auth file has changed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from brokerd.datadir.topic_store import TopicStore
from brokerd.server.security.auth_file import parse_identities
from brokerd.server.security.authenticator import Authenticator
from brokerd.server.security.call_authorizer import CallAuthorizer
from brokerd.server.security.request_filter import RequestFilter
from brokerd.server.security.tokens import hash_token
from tests.support.certificates import Authority
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.identities import AUTH_FILE, TOKENS


class Call(NamedTuple):
    """The context of a call."""

    metadata: tuple[tuple[str, str], ...] = ()
    certificates: tuple[bytes, ...] = ()

    def invocation_metadata(self) -> Iterable[Any]:
        return self.metadata

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {"x509_pem_cert": self.certificates}

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


def with_token(token: str) -> Call:
    return Call((("authorization", f"Bearer {token}"),))


def call_authorizer_of(authenticator: Authenticator) -> CallAuthorizer:
    return CallAuthorizer(authenticator, TopicStore(MemoryFiles()), RequestFilter(auto_creates=False), ManualClock(), lambda: 0)


def replaced(call_authorizer: CallAuthorizer, authenticator: Authenticator, text: str) -> None:
    authenticator.replace(parse_identities(tomllib.loads(text)))
    call_authorizer.refresh()


def test_a_token_that_is_gone_or_anothers_is_revoked_and_no_other() -> None:
    authenticator = Authenticator(parse_identities(tomllib.loads(AUTH_FILE)), needs_certificate=False)
    call_authorizer = call_authorizer_of(authenticator)
    calls = {name: with_token(token) for name, token in TOKENS.items()}
    authorizers = {name: call_authorizer.authenticate(call) for name, call in calls.items()}
    swapped = AUTH_FILE.replace(hash_token(TOKENS["reader"]), "swap").replace(
        hash_token(TOKENS["boss"]), hash_token(TOKENS["reader"])
    )
    replaced(call_authorizer, authenticator, swapped.replace("swap", hash_token("a-new-one-" + TOKENS["boss"])))
    revoked = {name for name, call in calls.items() if call_authorizer.revoked(authorizers[name], call) is not None}
    assert revoked == {"boss", "reader"}
    assert call_authorizer.refused_count == 0, "it is no new call of a stranger"


def test_a_certificate_whose_name_is_taken_out_is_revoked(tmp_path: Path) -> None:
    authenticator = Authenticator(parse_identities(tomllib.loads(AUTH_FILE)), needs_certificate=True)
    call_authorizer = call_authorizer_of(authenticator)
    issued = Authority(tmp_path).issue("reader.example")
    call = Call(certificates=(Path(issued.certificate_file).read_bytes(),))
    authorizer = call_authorizer.authenticate(call)
    replaced(call_authorizer, authenticator, AUTH_FILE)
    assert call_authorizer.revoked(authorizer, call) is None
    replaced(call_authorizer, authenticator, AUTH_FILE.replace('certificates = ["reader.example"]', ""))
    assert call_authorizer.revoked(authorizer, call) is not None


def test_nobody_is_revoked_where_everybody_may_call() -> None:
    for authenticator in (Authenticator(None, needs_certificate=False), Authenticator(None, needs_certificate=True)):
        call_authorizer = call_authorizer_of(authenticator)
        authorizer = call_authorizer.authenticate(Call())
        call_authorizer.refresh()
        assert call_authorizer.revoked(authorizer, Call()) is None
