"""Revocation of calls after a change of the auth file, and the lines that calls leave in the audit trail."""

from __future__ import annotations

import asyncio
import logging
import threading
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from brokerd.datadir.topic_store import TopicStore
from brokerd.server.security.audit import Audit
from brokerd.server.security.authenticator import Authenticator, Callers, UnauthenticatedError
from brokerd.server.security.credentials import parse_identities
from brokerd.server.security.tokens import hash_token
from brokerd.server.service import BrokerService
from brokerd.sharing import CALLER
from brokerd.steps import Job, Steps
from brokerd.wire.methods import UNARY
from brokerd.wire.v1 import topics_pb2
from tests.support.certificates import Authority
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.identities import AUTH_FILE, TOKENS
from tests.support.inner_broker import running
from tests.support.logged import messages_of
from tests.support.loop import all_wait


class Call(NamedTuple):
    """The context of a call."""

    metadata: tuple[tuple[str, str], ...] = ()
    certificates: tuple[bytes, ...] = ()
    host: str = "ipv4:127.0.0.1"

    def invocation_metadata(self) -> Iterable[Any]:
        return self.metadata

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {"x509_pem_cert": self.certificates}

    def peer(self) -> str:
        return f"{self.host}:1"


def with_token(token: str) -> Call:
    return Call((("authorization", f"Bearer {token}"),))


def callers_of(authenticator: Authenticator) -> Callers:
    audit = Audit(ManualClock())
    return Callers(authenticator, TopicStore(MemoryFiles()), audit, on_stranger=lambda: pytest.fail("no new call"))


def replaced(callers: Callers, text: str) -> None:
    callers.replace(parse_identities(tomllib.loads(text)))


def test_a_token_that_is_gone_or_anothers_is_revoked_and_no_other() -> None:
    authenticator = Authenticator(parse_identities(tomllib.loads(AUTH_FILE)), needs_certificate=False)
    callers = callers_of(authenticator)
    calls = {name: with_token(token) for name, token in TOKENS.items()}
    authorizers = {name: callers.authenticate(call)[0] for name, call in calls.items()}
    swapped = AUTH_FILE.replace(hash_token(TOKENS["reader"]), "swap").replace(
        hash_token(TOKENS["boss"]), hash_token(TOKENS["reader"])
    )
    replaced(callers, swapped.replace("swap", hash_token("a-new-one-" + TOKENS["boss"])))
    revoked = {name for name, call in calls.items() if callers.revoked(authorizers[name], call) is not None}
    assert revoked == {"boss", "reader"}


def test_a_certificate_whose_name_is_taken_out_is_revoked(tmp_path: Path) -> None:
    authenticator = Authenticator(parse_identities(tomllib.loads(AUTH_FILE)), needs_certificate=True)
    callers = callers_of(authenticator)
    issued = Authority(tmp_path).issue("reader.example")
    call = Call(certificates=(Path(issued.certificate_file).read_bytes(),))
    authorizer = callers.authenticate(call)[0]
    replaced(callers, AUTH_FILE)
    assert callers.revoked(authorizer, call) is None
    replaced(callers, AUTH_FILE.replace('certificates = ["reader.example"]', ""))
    assert callers.revoked(authorizer, call) is not None


def test_ipv6_addresses_are_readable(caplog: pytest.LogCaptureFixture) -> None:
    """gRPC percent-encodes the brackets, as in a URL."""
    authenticator = Authenticator(parse_identities(tomllib.loads(AUTH_FILE)), needs_certificate=False)
    callers = Callers(authenticator, TopicStore(MemoryFiles()), Audit(ManualClock()))
    call = with_token(TOKENS["boss"])._replace(host="ipv6:%5B2001:db8::7%5D")
    authorizer, caller = callers.authenticate(call)
    assert caller.peer == "ipv6:[2001:db8::7]:1"
    with pytest.raises(UnauthenticatedError):
        callers.authenticate(call._replace(metadata=()))
    replaced(callers, AUTH_FILE.replace(hash_token(TOKENS["boss"]), hash_token("a-new-one-" + TOKENS["boss"])))
    assert callers.revoked(authorizer, call) is not None
    refused, revoked = messages_of(caplog, "brokerd.audit")
    assert refused.startswith("ipv6:[2001:db8::7] refused: ")
    assert revoked == "boss refused: its stream from ipv6:[2001:db8::7]:1 ends, its credentials are revoked"


def test_nobody_is_revoked_where_everybody_may_call() -> None:
    for authenticator in (Authenticator(None, needs_certificate=False), Authenticator(None, needs_certificate=True)):
        callers = callers_of(authenticator)
        authorizer = callers.authenticate(Call())[0]
        callers.replace(None)
        assert callers.revoked(authorizer, Call()) is None


async def test_a_topic_whose_deletion_has_no_caller_any_more_leaves_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="brokerd.audit")

    async with running(MemoryFiles(), ManualClock()) as broker:
        await broker.topic("elsewhere", 1)
        authenticator = Authenticator(parse_identities(tomllib.loads(AUTH_FILE)), needs_certificate=False)
        callers = Callers(authenticator, broker.broker.topics, broker.broker.audit)
        authorizer, caller = callers.authenticate(with_token(TOKENS["outsider"]))
        CALLER.set(caller)
        go_on = threading.Event()
        before = asyncio.create_task(broker.broker.admin.run(iter_jobs(go_on.wait)))
        await all_wait()
        request = topics_pb2.DeleteTopicsRequest(names=["events-1", "elsewhere"]).SerializeToString()
        call = asyncio.create_task(BrokerService(broker.broker, callers)._answer(UNARY["DeleteTopics"], authorizer, request))
        await all_wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        go_on.set()
        await before
        await broker.broker.admin.drain()
        await all_wait()
    assert [line.partition(":")[0] for line in messages_of(caplog, "brokerd.audit")] == [
        "outsider refused",
        "outsider deleted topic 'elsewhere' (from ipv4",
    ]


def iter_jobs(job: Job) -> Steps[None]:
    """Steps of one job."""
    yield job
