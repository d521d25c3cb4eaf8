"""Whose a producer id is: the principal's that was given it, the first one's after a restart, nobody's if it was never given."""

from __future__ import annotations

import pytest

from brokerd.server.security import producer_owners
from brokerd.server.security.producer_owners import ProducerOwners


def test_an_id_belongs_to_the_first_and_stays_with_it() -> None:
    owners = ProducerOwners(lambda: 10)
    assert owners.claim(3, "etl")
    assert not owners.claim(3, "other")
    assert owners.claim(3, "etl")
    assert owners.claim(4, "other")
    assert len(owners) == 2


def test_an_id_that_was_never_given_is_nobody_s() -> None:
    free = 10
    owners = ProducerOwners(lambda: free)
    assert owners.claim(9, "etl")
    assert not owners.claim(10, "other"), "or it would be another's before its producer gets it"
    assert not owners.was_given(10)
    free = 11
    assert owners.was_given(10)
    assert owners.claim(10, "etl")


def test_a_principal_that_takes_many_ids_loses_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_owners, "IDS_PER_PRINCIPAL_MAX", 3)
    owners = ProducerOwners(lambda: 1_000)
    assert owners.claim(0, "etl")
    for producer_id in (1, 2, 3, 1, 4, 5):
        assert owners.claim(producer_id, "greedy")
    assert not owners.claim(0, "greedy")
    assert not owners.claim(1, "etl"), "used again, and so remembered"
    assert owners.claim(2, "etl"), "the one that was silent longest"
    assert len(owners) == 5
