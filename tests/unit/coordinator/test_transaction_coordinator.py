"""All transactional ids together: owners, limits, renewal and expiry, and which ids are forgotten."""

from __future__ import annotations

import uuid

import pytest

from brokerd.coordinator import transaction_coordinator
from brokerd.coordinator.transaction_coordinator import JOB_KEPT_MS
from brokerd.coordinator.transactional_id import Progress
from brokerd.errors import (
    InvalidRequestError,
    InvalidTxnStateError,
    PolicyViolationError,
    TransactionalIdAuthorizationFailedError,
    TxnAbortedError,
)
from brokerd.producer.core.membership import ONE_WRITE_KEPT_MS
from brokerd.sink.transaction import JOB_COMMIT_TIMEOUT_MAX_MS
from brokerd.wire.v1.coordinator_log_pb2 import TransactionalIdForgotten
from tests.support.transaction_bench import AGE_MAX_MS, ID, TIMEOUT_MS, TransactionBench, execution

ONE = execution(5)
MALLORY = "User:mallory"


@pytest.fixture
def bench() -> TransactionBench:
    """An empty coordinator."""
    return TransactionBench(ids=3, members=4)


# --- owners


def test_an_id_belongs_to_whoever_used_it_first(bench: TransactionBench) -> None:
    member = bench.init("a", ONE)
    asked = bench.end_request(ONE, {"a": 0}, principal=MALLORY)
    for request in (
        lambda: bench.init("b", ONE, principal=MALLORY),
        lambda: bench.commit(asked),
        lambda: bench.abort(asked),
        lambda: bench.heartbeat(ONE, member.member_id, principal=MALLORY),
    ):
        with pytest.raises(TransactionalIdAuthorizationFailedError, match="'spark-q' belongs to another principal"):
            request()
    assert member.producer_id in bench.coordinator.open_members


def test_it_stays_so_after_a_commit_and_a_restart(bench: TransactionBench) -> None:
    bench.commit_all(bench.end_request(ONE))
    bench.compact()
    bench.restart()
    with pytest.raises(TransactionalIdAuthorizationFailedError):
        bench.init("b", execution(6), principal=MALLORY)


def test_an_id_that_never_committed_is_free_once_nobody_is_open(bench: TransactionBench) -> None:
    bench.init("a", ONE)
    bench.abort(bench.end_request(ONE, {"a": 0}))
    assert not bench.coordinator.states
    assert (bench.ids.taken, bench.members.taken) == (0, 0)
    bench.init("b", ONE, principal=MALLORY)


# --- limits


def test_ids_have_a_limit(bench: TransactionBench) -> None:
    for name in ("x", "y", "z"):
        bench.commit_all(bench.end_request(ONE, name=name))
    with pytest.raises(PolicyViolationError, match=r"'w' would be one more than max\.transactional\.ids"):
        bench.init("a", ONE, name="w")
    with pytest.raises(PolicyViolationError, match=r"max\.transactional\.ids"):
        bench.commit(bench.end_request(ONE, name="w"))
    assert bench.abort(bench.end_request(ONE, name="w")) == []
    bench.init("a", execution(6), name="x")


def test_open_members_have_a_limit(bench: TransactionBench) -> None:
    for who in "abcd":
        bench.init(who, ONE)
    with pytest.raises(PolicyViolationError, match=r"max\.open\.members"):
        bench.init("e", ONE)
    bench.init("a", ONE)  # it is open already
    bench.abort(bench.end_request(ONE, {"b": 0}))
    bench.init("e", ONE)
    bench.commit_all(bench.end_request(ONE))
    assert bench.members.taken == 0


@pytest.mark.parametrize("timeout_ms", [0, -1, 3_600_001])
def test_timeouts_have_a_limit(bench: TransactionBench, timeout_ms: int) -> None:
    with pytest.raises(InvalidRequestError, match=rf"timeout_ms is {timeout_ms}, outside 1 to 3600000"):
        bench.init("a", ONE, timeout_ms=timeout_ms)


def test_the_memory_of_ended_members_has_a_limit(bench: TransactionBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_coordinator, "ENDED_MEMBERS_MAX", 2)
    for who in "abc":
        bench.init(who, ONE)
        bench.abort(bench.end_request(ONE, {who: 0}))
    again = bench.init("a", ONE)
    assert again.producer_id not in (known.producer_id for who, known in bench.known.items() if who != "a")
    for who in "bc":
        with pytest.raises(InvalidTxnStateError, match="was open and has ended"):
            bench.init(who, ONE)
    bench.init("b", ONE, name="another")


# --- renewal and expiry


def test_a_sign_of_one_member_counts_for_its_execution_alone(bench: TransactionBench) -> None:
    first = bench.init("a", ONE)
    bench.init("b", ONE)
    other = bench.init("c", execution(5, "e2", "r2"))
    bench.now_ms = TIMEOUT_MS - 1
    bench.heartbeat(ONE, first.member_id)
    bench.now_ms = TIMEOUT_MS
    assert bench.expire() == [other.producer_id]
    assert bench.expires_at("a") == 2 * TIMEOUT_MS - 1
    bench.now_ms = 2 * TIMEOUT_MS - 1
    assert len(bench.expire()) == 2
    assert bench.expire() == []


def test_init_repetition_and_data_are_signs_of_life(bench: TransactionBench) -> None:
    member = bench.init("a", ONE)
    bench.now_ms = 10
    bench.init("a", ONE)
    assert bench.expires_at("a") == TIMEOUT_MS + 10
    bench.coordinator.renew(member.producer_id, 20)
    assert bench.expires_at("a") == TIMEOUT_MS + 20
    bench.now_ms = 30
    bench.init("b", ONE)
    assert bench.expires_at("a") == TIMEOUT_MS + 30
    bench.coordinator.renew(999, 40)  # not an open member: no effect


def test_an_execution_that_is_too_old_ends_whatever_signs_it_gives(bench: TransactionBench) -> None:
    members = [bench.init("a", ONE)]
    for now_ms in range(TIMEOUT_MS // 2, AGE_MAX_MS, TIMEOUT_MS // 2):
        bench.now_ms = now_ms
        bench.heartbeat(ONE, members[0].member_id)
        assert bench.expire() == []
    members.append(bench.init("b", ONE))
    assert bench.expires_at("b") == AGE_MAX_MS
    bench.now_ms = AGE_MAX_MS
    (key,) = bench.coordinator.expired(bench.now_ms)
    assert bench.coordinator.is_too_old(key, bench.now_ms)
    assert bench.expire() == [member.producer_id for member in members]
    with pytest.raises(InvalidTxnStateError):
        bench.heartbeat(ONE, members[0].member_id)
    bench.init("again", ONE)  # the same execution, whose age starts anew since no member was open
    assert bench.expires_at("again") == AGE_MAX_MS + TIMEOUT_MS


def test_an_execution_has_the_longest_timeout_of_its_members(bench: TransactionBench) -> None:
    bench.init("a", ONE, timeout_ms=1_000)
    bench.init("b", ONE, timeout_ms=500)
    assert bench.expires_at("a") == 1_000


def test_a_restart_grants_a_full_timeout(bench: TransactionBench) -> None:
    bench.init("a", ONE)
    bench.now_ms = TIMEOUT_MS - 1
    bench.restart()
    assert bench.expires_at("a") == 2 * TIMEOUT_MS - 1


def test_a_heartbeat_of_a_member_that_is_not_open_is_refused(bench: TransactionBench) -> None:
    member = bench.init("a", ONE)
    for of, member_id in ((execution(5, "e2"), member.member_id), (execution(6), member.member_id), (ONE, bytes(16))):
        with pytest.raises(InvalidTxnStateError, match="no version is committed; begin again with another member id"):
            bench.heartbeat(of, member_id)


# --- operators


def test_an_operator_aborts_one_execution_or_all(bench: TransactionBench) -> None:
    ids = [bench.init(who, of).producer_id for who, of in (("a", ONE), ("b", execution(5, "e2")), ("c", execution(6, "e3")))]
    assert bench.end(bench.coordinator.abort_all(ID, "e2")) == [ids[1]]
    assert bench.end(bench.coordinator.abort_all(ID, "e9")) == []
    assert bench.end(bench.coordinator.abort_all(ID)) == [ids[0], ids[2]]
    assert bench.coordinator.abort_all(ID) is None


def test_what_is_neither_open_nor_prepared_is_void(bench: TransactionBench) -> None:
    ids = [bench.init(who, of).producer_id for who, of in (("a", ONE), ("b", ONE), ("c", execution(6)), ("d", ONE))]
    bench.abort(bench.end_request(ONE, {"d": 0}))
    assert bench.coordinator.presumed_aborted([*ids, 7]) == [ids[3], 7]
    bench.commit(bench.end_request(ONE, {"a": 0}))
    assert bench.coordinator.presumed_aborted([*ids, 7]) == [ids[3], 7]
    assert [name for name, _ in bench.coordinator.prepared()] == [ID]
    bench.finish()
    assert bench.coordinator.presumed_aborted([*ids, 7]) == [ids[0], ids[1], ids[3], 7]
    assert bench.coordinator.prepared() == []


# --- members of completed commits


def ended(bench: TransactionBench) -> dict[str, tuple[int, ...]]:
    """The remembered members of each id's last commit, winners first."""
    found = {name: state.last for name, state in bench.coordinator.states.items()}
    return {name: (*last.committed_producer_ids, *last.aborted_producer_ids) for name, last in found.items() if last is not None}


def test_a_state_remembers_the_members_of_the_last_commit(bench: TransactionBench) -> None:
    winner, loser = (bench.init(who, ONE).producer_id for who in "ab")
    bench.commit_all(bench.end_request(ONE, {"a": 0}))
    for _ in range(2):
        assert ended(bench) == {ID: (winner, loser)}
        bench.compact()
        bench.restart()
        assert bench.coordinator.prepared() == []
    bench.commit_all(bench.end_request(execution(6)))
    assert ended(bench) == {ID: ()}


def test_members_of_the_oldest_commits_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = TransactionBench()
    monkeypatch.setattr(transaction_coordinator, "COMMITTED_IDS_MAX", 3)
    ids = {}
    for name in ("x", "y", "x", "z"):
        of = execution(len(bench.log))
        members = [f"{name}{number}{of.txn_version}" for number in range(2)]
        ids[name] = tuple(bench.init(member, of, name=name).producer_id for member in members)
        bench.commit_all(bench.end_request(of, dict.fromkeys(members, 0), name=name))
    assert ended(bench) == {"x": (), "y": (), "z": ids["z"]}
    many = [f"many{number}" for number in range(5)]
    of = execution(len(bench.log))
    ids["x"] = tuple(bench.init(member, of, name="x").producer_id for member in many)
    bench.commit(bench.end_request(of, dict.fromkeys(many, 0), name="x"))
    bench.commit_all(bench.end_request(execution(0), name="w"))
    assert ended(bench) == {"x": ids["x"], "y": (), "z": (), "w": ()}
    bench.compact()
    bench.restart()
    prepared = bench.coordinator.states["x"].prepared
    assert prepared is not None
    assert tuple(prepared.committed_producer_ids) == ids["x"], "a commit that is not finished knows its members"
    bench.finish("x")
    assert ended(bench) == {"x": (), "y": (), "z": (), "w": ()}


def test_a_start_knows_whose_commits_are_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = TransactionBench()
    monkeypatch.setattr(transaction_coordinator, "COMMITTED_IDS_MAX", 4)
    for name in ("x", "y", "x", "z"):
        of = execution(len(bench.log))
        members = [f"{name}{number}{of.txn_version}" for number in range(2)]
        for member in members:
            bench.init(member, of, name=name)
        if name == "z":
            bench.compact()
            bench.restart()
        bench.commit_all(bench.end_request(of, dict.fromkeys(members, 0), name=name))
    assert {name: bool(ids) for name, ids in ended(bench).items()} == {"x": True, "y": False, "z": True}


# --- forgotten ids


JOB, OTHER_JOB = (f"job-{uuid.UUID(int=number)}" for number in (1, 2))


def test_ids_of_one_write_are_forgotten_after_an_hour(bench: TransactionBench) -> None:
    for name in (JOB, "spark-1", "app-1"):
        bench.commit_all(bench.end_request(execution(0), name=name, is_one_write=name == JOB))
    assert list(bench.coordinator.forgettable(JOB_KEPT_MS - 1)) == []
    assert list(bench.coordinator.forgettable(JOB_KEPT_MS)) == [JOB]
    bench.now_ms = JOB_KEPT_MS
    bench.compact()
    bench.restart()
    assert list(bench.coordinator.forgettable(bench.now_ms)) == [], "how long the broker was gone is not known"
    old = bench.now_ms + JOB_KEPT_MS
    event = bench.coordinator.forget(JOB, old)
    assert event is not None
    bench.record(event, JOB)
    assert sorted(bench.coordinator.states) == ["app-1", "spark-1"]
    assert bench.ids.taken == 2
    bench.restart()
    assert sorted(bench.coordinator.states) == ["app-1", "spark-1"]
    assert bench.coordinator.forget(JOB, old) is None


def test_a_commit_that_is_asked_for_again_is_known_until_nobody_asks(bench: TransactionBench) -> None:
    bench.init("a", execution(0), name=JOB)
    asked = bench.end_request(execution(0), {"a": 0}, name=JOB, is_one_write=True)
    bench.commit_all(asked)
    bench.now_ms = JOB_KEPT_MS - 1
    for name in bench.coordinator.forgettable(bench.now_ms):
        bench.record(TransactionalIdForgotten(), name)
    assert bench.commit(asked) is Progress.COMPLETE
    assert JOB_COMMIT_TIMEOUT_MAX_MS <= JOB_KEPT_MS // 2
    assert JOB_KEPT_MS == ONE_WRITE_KEPT_MS, "clients go by it"


def test_as_many_ids_of_one_write_as_there_is_room_for_in_an_hour(bench: TransactionBench) -> None:
    bench.ids.limit = 3
    for number in range(10):
        for name in bench.coordinator.forgettable(bench.now_ms):
            bench.record(TransactionalIdForgotten(), name)
        name = f"job-{uuid.UUID(int=number)}"
        bench.init("a", execution(0), name=name)
        bench.commit_all(bench.end_request(execution(0), {"a": 0}, name=name, is_one_write=True))
        bench.now_ms += JOB_KEPT_MS // 3 + 1
    assert bench.ids.taken == 3


def test_an_id_that_is_at_work_is_not_forgotten(bench: TransactionBench) -> None:
    old = JOB_KEPT_MS
    bench.commit(bench.end_request(execution(0), name=JOB, is_one_write=True))
    assert bench.coordinator.forget(JOB, old) is None  # prepared
    bench.finish(JOB)
    bench.init("a", execution(1), name=JOB)
    assert bench.coordinator.forget(JOB, old) is None  # open
    bench.init("a", execution(1), name=OTHER_JOB)
    assert bench.coordinator.forget(OTHER_JOB, old) is None  # never committed


def test_a_users_id_that_looks_like_one_of_a_job_is_kept(bench: TransactionBench) -> None:
    bench.commit_all(bench.end_request(execution(0), name=JOB))
    bench.compact()
    bench.restart()
    assert list(bench.coordinator.forgettable(JOB_KEPT_MS)) == []


def test_an_id_of_one_write_that_goes_on_to_serve_others_is_kept(bench: TransactionBench) -> None:
    bench.commit_all(bench.end_request(execution(0), name=JOB, is_one_write=True))
    bench.commit_all(bench.end_request(execution(1), name=JOB))
    assert list(bench.coordinator.forgettable(JOB_KEPT_MS)) == []


def test_an_operator_has_an_id_forgotten_that_is_not_at_work(bench: TransactionBench) -> None:
    assert bench.coordinator.forget_at_once(ID) is None
    bench.init("a", ONE)
    with pytest.raises(InvalidTxnStateError, match=r"while members are open \(1\): abort them first"):
        bench.coordinator.forget_at_once(ID)
    asked = bench.end_request(ONE, {"a": 0})
    bench.commit(asked)
    with pytest.raises(InvalidTxnStateError, match="while a commit is not finished: wait for it"):
        bench.coordinator.forget_at_once(ID)
    bench.finish()
    event = bench.coordinator.forget_at_once(ID)
    assert event is not None
    bench.record(event)
    assert (bench.ids.taken, dict(bench.coordinator.states)) == (0, {})
    with pytest.raises(TxnAbortedError):  # a retried commit is not taken for a new one
        bench.commit(asked)
    bench.init("b", execution(1), principal=MALLORY)
    bench.restart()
    assert bench.coordinator.states[ID].principal == MALLORY


def test_a_forgotten_id_takes_its_open_members_along(bench: TransactionBench) -> None:
    bench.init("a", ONE)
    bench.record(TransactionalIdForgotten())
    assert (bench.ids.taken, bench.members.taken, len(bench.coordinator.open_members)) == (0, 0, 0)
    assert bench.coordinator.expired(TIMEOUT_MS) == []
