"""Goal: a fault meets exactly the request that it was ordered for."""

from __future__ import annotations

from brokerd.testing.faults import AFTER, BEFORE, KILL, LOSE, Armed, Fault, FaultPlan


def test_a_fault_meets_its_request_once() -> None:
    plan = FaultPlan([Armed(1, KILL, "Produce", AFTER, 2)])
    assert plan.meet("Produce", BEFORE) == plan.meet("Fetch", AFTER) == []
    assert [(one.number, one.left) for one in plan.meet("Produce", AFTER)] == [(1, 1)]
    assert plan.watches("Produce", AFTER)
    assert [(one.number, one.left) for one in plan.meet("Produce", AFTER)] == [(1, 0)]
    assert not plan.watches("Produce", AFTER)
    assert plan.meet("Produce", AFTER) == []


def test_two_faults_count_the_same_request() -> None:
    plan = FaultPlan()
    plan.arm(Armed(1, LOSE, "Fetch", AFTER, 1))
    plan.arm(Armed(2, KILL, "Fetch", AFTER, 2))
    assert [one.number for one in plan.meet("Fetch", AFTER)] == [1, 2]
    assert [(one.number, one.left) for one in plan.meet("Fetch", AFTER)] == [(2, 0)]


def test_a_fault_that_has_happened_does_not_come_again_after_a_start() -> None:
    assert not FaultPlan([Armed(1, KILL, "Produce", AFTER, 0)]).watches("Produce", AFTER)


def test_a_fault_says_what_it_is_and_whether_it_has_been() -> None:
    left = {1: 2}
    fault = Fault(1, Armed(1, KILL, "Produce", AFTER, 2).text(), lambda: left)
    assert str(fault) == "the broker is killed after Produce number 2 from now"
    assert Armed(1, LOSE, "Fetch", AFTER, 1).text() == "the response is lost after the next Fetch"
    assert not fault.has_happened
    left[1] = 0
    assert fault.has_happened
