"""Whether a call is still its caller's after the auth file has changed, and what it leaves in the audit trail."""

from __future__ import annotations

import asyncio
import logging
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from brokerd.datadir.topic_store import TopicStore
from brokerd.server.security.audit import LINES_MAX
from brokerd.server.security.auth_file import parse_identities
from brokerd.server.security.authenticator import Authenticator
from brokerd.server.security.call_authorizer import CallAuthorizer
from brokerd.server.security.tokens import hash_token
from brokerd.wire.v1 import topics_pb2
from tests.support.certificates import Authority
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.identities import AUTH_FILE, TOKENS
from tests.support.loop import all_wait


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
    return CallAuthorizer(authenticator, TopicStore(MemoryFiles()), ManualClock(), on_stranger=lambda: pytest.fail("no new call"))


def replaced(call_authorizer: CallAuthorizer, authenticator: Authenticator, text: str) -> None:
    authenticator.replace(parse_identities(tomllib.loads(text)))
    call_authorizer.refresh()


def test_a_token_that_is_gone_or_anothers_is_revoked_and_no_other() -> None:
    authenticator = Authenticator(parse_identities(tomllib.loads(AUTH_FILE)), needs_certificate=False)
    call_authorizer = call_authorizer_of(authenticator)
    calls = {name: with_token(token) for name, token in TOKENS.items()}
    authorizers = {name: call_authorizer.authenticate(call)[0] for name, call in calls.items()}
    swapped = AUTH_FILE.replace(hash_token(TOKENS["reader"]), "swap").replace(
        hash_token(TOKENS["boss"]), hash_token(TOKENS["reader"])
    )
    replaced(call_authorizer, authenticator, swapped.replace("swap", hash_token("a-new-one-" + TOKENS["boss"])))
    revoked = {name for name, call in calls.items() if call_authorizer.revoked(authorizers[name], call) is not None}
    assert revoked == {"boss", "reader"}


def test_a_certificate_whose_name_is_taken_out_is_revoked(tmp_path: Path) -> None:
    authenticator = Authenticator(parse_identities(tomllib.loads(AUTH_FILE)), needs_certificate=True)
    call_authorizer = call_authorizer_of(authenticator)
    issued = Authority(tmp_path).issue("reader.example")
    call = Call(certificates=(Path(issued.certificate_file).read_bytes(),))
    authorizer = call_authorizer.authenticate(call)[0]
    replaced(call_authorizer, authenticator, AUTH_FILE)
    assert call_authorizer.revoked(authorizer, call) is None
    replaced(call_authorizer, authenticator, AUTH_FILE.replace('certificates = ["reader.example"]', ""))
    assert call_authorizer.revoked(authorizer, call) is not None


def test_nobody_is_revoked_where_everybody_may_call() -> None:
    for authenticator in (Authenticator(None, needs_certificate=False), Authenticator(None, needs_certificate=True)):
        call_authorizer = call_authorizer_of(authenticator)
        authorizer = call_authorizer.authenticate(Call())[0]
        call_authorizer.refresh()
        assert call_authorizer.revoked(authorizer, Call()) is None


class DeleteTopics:
    """Calls of a principal that may administer some topics; `go_on` lets them be done."""

    def __init__(self) -> None:
        authenticator = Authenticator(parse_identities(tomllib.loads(AUTH_FILE)), needs_certificate=False)
        self._call_authorizer = call_authorizer_of(authenticator)
        self._outsider = self._call_authorizer.authenticate(with_token(TOKENS["outsider"]))[0]
        self.go_on = asyncio.Event()

    async def call(self, name: str) -> topics_pb2.DeleteTopicsResponse:
        request = topics_pb2.DeleteTopicsRequest(names=[name])
        peer = "ipv4:127.0.0.1:1"
        response = await self._call_authorizer.call(
            "DeleteTopics", self._outsider, request, topics_pb2.DeleteTopicsResponse, self._handle, peer
        )
        assert isinstance(response, topics_pb2.DeleteTopicsResponse)
        return response

    async def _handle(self, request: topics_pb2.DeleteTopicsRequest) -> topics_pb2.DeleteTopicsResponse:
        await self.go_on.wait()
        return topics_pb2.DeleteTopicsResponse(results=[topics_pb2.TopicResult(name=name) for name in request.names])


def test_a_topic_deleted_after_many_refused_calls_leaves_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="brokerd.audit")

    async def scenario() -> None:
        calls = DeleteTopics()
        calls.go_on.set()
        for _ in range(LINES_MAX + 5):
            assert (await calls.call("events-1")).results[0].HasField("error")
        assert not (await calls.call("elsewhere")).results[0].HasField("error")

    asyncio.run(scenario())
    assert caplog.messages[LINES_MAX:] == ["outsider deleted topic 'elsewhere' (from ipv4:127.0.0.1:1)"]


def test_a_change_whose_caller_is_gone_leaves_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="brokerd.audit")

    async def scenario() -> None:
        calls = DeleteTopics()
        call = asyncio.create_task(calls.call("elsewhere"))
        await all_wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        calls.go_on.set()
        await all_wait()

    asyncio.run(scenario())
    assert caplog.messages == ["outsider deleted topic 'elsewhere' (from ipv4:127.0.0.1:1)"]
