"""The owner of a producer id is given by its tag, for ever; a number that was never given is nobody's."""

from __future__ import annotations

import pytest

from brokerd.errors import ConfigError
from brokerd.ids import NO_PRODUCER_ID, is_member_producer_id, member_producer_id, producer_number
from brokerd.server.security import auth_file
from brokerd.server.security.auth_file import parse_identities
from brokerd.server.security.producer_owners import NOBODY, ProducerOwners, owner_tag
from brokerd.server.security.tokens import hash_token


def test_tags_are_written_to_disk_and_never_change() -> None:
    assert owner_tag("etl") == 6284387
    assert owner_tag("writer") == 5089292
    assert all(0 < owner_tag(f"principal-{n}") < 2**23 for n in range(10_000))


def test_an_id_is_its_owner_s_alone() -> None:
    owners = ProducerOwners(lambda: 10)
    given_to = owners.given_to
    etl, other = owner_tag("etl"), owner_tag("other")
    given = given_to(etl, 3)
    assert 0 < given < 2**63
    assert given_to(etl, given) == given
    assert owners.owns(etl, given)
    assert not owners.owns(other, given)
    assert not owners.owns(etl, 3), "of the time before authentication"
    assert not owners.owns(NOBODY, given)
    assert owners.owns(NOBODY, 3)


def test_the_id_of_a_member_stays_one_whoever_owns_it() -> None:
    owners = ProducerOwners(lambda: 10)
    etl = owner_tag("etl")
    given = owners.given_to(etl, member_producer_id(3))
    assert 0 < given < 2**63
    assert owners.owns(etl, given)
    assert is_member_producer_id(given)
    assert producer_number(given) == 3
    assert not is_member_producer_id(owners.given_to(etl, 3))
    assert not is_member_producer_id(NO_PRODUCER_ID)


def test_an_id_that_was_never_given_is_nobody_s() -> None:
    free = 10
    owners = ProducerOwners(lambda: free)
    given_to = owners.given_to
    etl = owner_tag("etl")
    assert owners.owns(etl, given_to(etl, 9))
    assert not owners.owns(etl, given_to(etl, 10)), "or it would be taken before its producer gets it"
    free = 11
    assert owners.owns(etl, given_to(etl, 10))


def test_two_principals_with_one_tag_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth_file, "owner_tag", lambda _name: 5)
    principals = {name: {"tokens": [hash_token(name * 20)]} for name in ("a", "b")}
    with pytest.raises(ConfigError, match="principals 'a' and 'b' would have their producer ids in common: rename one of them"):
        parse_identities({"principals": principals})


def test_an_open_broker_lets_everybody_use_the_ids_there_are_but_none_that_is_made_up() -> None:
    owners = ProducerOwners(lambda: 10, is_open=True)
    assert owners.given_to(owner_tag("anybody"), 3) == 3
    assert owners.owns(owner_tag("anybody"), 3)
    assert owners.owns(owner_tag("anybody"), 7 << 40 | 3), "given to somebody before authentication was switched off"
    assert not owners.owns(owner_tag("anybody"), 10), "a number far ahead would have all newcomers taken for forgotten producers"
