"""Shares: no principal takes all slots of a limit."""

from __future__ import annotations

from brokerd.sharing import Shares


def _fill(shares: Shares, principal: str, step: int) -> int:
    while shares.has_room(principal, step):
        shares.add(principal, step)
    return shares.count(principal)


def test_each_principal_has_four_fifths_of_what_others_leave() -> None:
    shares = Shares(1_000)
    assert [_fill(shares, name, 1) for name in "abc"] == [800, 160, 32]
    assert shares.total == 992
    assert not shares.has_room("a", 1)


def test_one_place_is_somebody_s_and_of_two_one_is_left_for_others() -> None:
    assert [_fill(Shares(1), "a", 1), _fill(Shares(2), "a", 1), _fill(Shares(3), "a", 1)] == [1, 1, 2]
    shares = Shares(2)
    assert [_fill(shares, name, 1) for name in "abc"] == [1, 1, 0]


def test_one_that_asks_for_all_places_at_once_does_not_get_them() -> None:
    assert not Shares(100).has_room("a", 100)
    assert not Shares(100).has_room("a", 81)
    assert Shares(100).has_room("a", 80)
    assert not Shares(1).has_room("a", 2)


def test_whoever_fills_its_share_with_large_ones_leaves_room_for_others() -> None:
    shares = Shares(1_000)
    assert _fill(shares, "a", 150) == 750
    assert shares.has_room("b", 200)
    assert not shares.has_room("b", 201)


def test_places_given_back_are_free() -> None:
    shares = Shares(10)
    shares.add("a", 8)
    shares.add("a", -8)
    assert (shares.total, shares.count("a")) == (0, 0)
    assert shares.has_room("b", 8)
