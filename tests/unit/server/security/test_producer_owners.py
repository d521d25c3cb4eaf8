"""The tag in a producer id alone determines its owner, permanently."""

from __future__ import annotations

import pytest

from brokerd.datadir.topic_store import TopicStore
from brokerd.errors import ConfigError
from brokerd.ids import NO_PRODUCER_ID, is_member_producer_id, member_producer_id, producer_number
from brokerd.server.security import credentials
from brokerd.server.security.credentials import parse_identities
from brokerd.server.security.tokens import hash_token
from brokerd.server.security.topic_authorizer import ANYBODY, NOTHING, Principal, TopicAuthorizer, owner_tag
from tests.support.files import MemoryFiles


def authorizer_of(principal: Principal) -> TopicAuthorizer:
    return TopicAuthorizer(principal, TopicStore(MemoryFiles()))


def named(name: str) -> TopicAuthorizer:
    return authorizer_of(Principal(name, NOTHING))


def test_tags_are_written_to_disk_and_never_change() -> None:
    assert owner_tag("etl") == 6284387
    assert owner_tag("writer") == 5089292
    assert all(0 < owner_tag(f"principal-{n}") < 2**23 for n in range(10_000))


def test_an_id_is_its_owner_s_alone() -> None:
    etl, other, anybody = named("etl"), named("other"), authorizer_of(ANYBODY)
    given = etl.own_producer_id(3)
    assert 0 < given < 2**63
    assert etl.own_producer_id(given) == given
    assert etl.owns_producer(given)
    assert not other.owns_producer(given)
    assert not etl.owns_producer(3), "of the time before authentication"
    assert anybody.owns_producer(3)


def test_the_id_of_a_member_stays_one_whoever_owns_it() -> None:
    etl = named("etl")
    given = etl.own_producer_id(member_producer_id(3))
    assert 0 < given < 2**63
    assert etl.owns_producer(given)
    assert is_member_producer_id(given)
    assert producer_number(given) == 3
    assert not is_member_producer_id(etl.own_producer_id(3))
    assert not is_member_producer_id(NO_PRODUCER_ID)


def test_two_principals_with_one_tag_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "owner_tag", lambda _name: 5)
    principals = {name: {"tokens": [hash_token(name * 20)]} for name in ("a", "b")}
    with pytest.raises(ConfigError, match="principals 'a' and 'b' would have their producer ids in common: rename one of them"):
        parse_identities({"principals": principals})


def test_an_open_broker_lets_everybody_use_all_ids() -> None:
    anybody = authorizer_of(ANYBODY)
    assert anybody.own_producer_id(3) == 3
    assert anybody.owns_producer(3)
    assert anybody.owns_producer(7 << 40 | 3), "given to somebody before authentication was switched off"
