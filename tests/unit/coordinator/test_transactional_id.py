"""The table of answers of a transactional id, cell by cell, and the scenarios that it was designed for."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from brokerd.coordinator.transactional_id import EARLIER_MAX, REPEATS_MAX, Held, Progress
from brokerd.errors import (
    AlreadyCommittedError,
    Fate,
    InvalidRequestError,
    InvalidTxnStateError,
    NotReadyError,
    ProducerFencedError,
    ReplayMismatchError,
    TxnAbortedError,
    TxnConflictError,
)
from brokerd.wire.v1.coordinator_log_pb2 import CommitPrepared
from brokerd.wire.v1.transaction_pb2 import EndTransactionRequest, TransactionMember, TransactionTotals
from tests.support.transaction_bench import (
    FIRST_PRODUCER_ID,
    ID,
    NOTHING,
    PRINCIPAL,
    TIMEOUT_MS,
    TransactionBench,
    execution,
    partition,
    summed,
    totals,
)

ONE = execution(5)
OTHER = execution(5, "e2", "r2")  # by another driver
SECOND = execution(5, "e2", "r1")  # another write of the same run
NEXT = execution(6, "e3", "r1")


@pytest.fixture
def bench() -> TransactionBench:
    """An empty coordinator."""
    return TransactionBench()


@pytest.fixture
def committed(bench: TransactionBench) -> TransactionBench:
    """Version 5 is committed with 3 rows of member a."""
    write(bench, "a", ONE, 3)
    bench.commit_all(bench.end_request(ONE, {"a": 3}))
    return bench


def write(bench: TransactionBench, who: str, of: object, records: int, number: int = 0) -> None:
    bench.init(who, of)  # type: ignore[arg-type]
    bench.wrote(who, records, partition(number))


# --- init


def test_a_member_gets_a_fresh_producer_id(bench: TransactionBench) -> None:
    assert [bench.init(who, ONE).producer_id for who in "ab"] == [FIRST_PRODUCER_ID, FIRST_PRODUCER_ID + 1]
    assert list(bench.coordinator.open_members) == [FIRST_PRODUCER_ID, FIRST_PRODUCER_ID + 1]


def test_a_repeated_member_gets_the_same_id_and_nothing_is_recorded(bench: TransactionBench) -> None:
    first = bench.init("a", ONE)
    assert bench.init("a", ONE) == first
    assert len(bench.log) == 1


def test_a_member_of_another_execution_cannot_be_taken_over(bench: TransactionBench) -> None:
    bench.init("a", ONE)
    with pytest.raises(InvalidTxnStateError, match="is open in version 5 in execution 'e1'"):
        bench.init("a", OTHER)


def test_an_ended_member_does_not_begin_again(bench: TransactionBench) -> None:
    bench.init("a", ONE)
    bench.abort(bench.end_request(ONE, {"a": 0}))
    with pytest.raises(InvalidTxnStateError, match="was open and has ended"):
        bench.init("a", ONE)
    bench.restart()
    with pytest.raises(InvalidTxnStateError, match="was open and has ended"):
        bench.init("a", ONE)


def test_init_aborts_nobody(bench: TransactionBench) -> None:
    """Healthy drivers do not end each other's work: the first commit wins."""
    for who, of in (("a", ONE), ("b", OTHER), ("c", SECOND), ("d", NEXT)):
        bench.init(who, of)
    assert len(bench.coordinator.open_members) == 4


def test_init_of_a_committed_version_is_told_so(committed: TransactionBench) -> None:
    for of in (ONE, OTHER):
        with pytest.raises(AlreadyCommittedError, match="version 5 in execution 'e1' of run 'r1' is committed with 3 rows"):
            committed.init("b", of)


def test_init_of_a_second_write_of_the_same_run_is_a_conflict(committed: TransactionBench) -> None:
    with pytest.raises(TxnConflictError, match="give this write a txnLabel of its own, and leave the first as it is"):
        committed.init("b", SECOND)


def test_an_empty_run_conflicts_with_nobody(bench: TransactionBench) -> None:
    bench.commit_all(bench.end_request(execution(0, "e1", "")))
    with pytest.raises(AlreadyCommittedError):
        bench.init("a", execution(0, "e2", ""))


def test_init_of_an_older_version_is_fenced(committed: TransactionBench) -> None:
    with pytest.raises(ProducerFencedError, match=r"'spark-q', version 4 in execution 'e9': version 5 .* which is newer"):
        committed.init("b", execution(4, "e9", "r9"))


def test_init_during_prepare(bench: TransactionBench) -> None:
    write(bench, "a", ONE, 3)
    bench.commit(bench.end_request(ONE, {"a": 3}))
    with pytest.raises(AlreadyCommittedError):
        bench.init("b", OTHER)
    with pytest.raises(TxnConflictError):
        bench.init("b", SECOND)
    newer = bench.init("b", NEXT)
    bench.finish()
    assert newer.producer_id in bench.coordinator.open_members


@pytest.mark.parametrize("request_of", ["init", "commit", "abort"])
def test_versions_count_from_zero(bench: TransactionBench, request_of: str) -> None:
    before = execution(-1)
    with pytest.raises(InvalidRequestError, match="txn_version is -1"):
        bench.init("a", before) if request_of == "init" else getattr(bench, request_of)(bench.end_request(before))


# --- commit


def test_a_commit_ends_everybody_up_to_its_version(bench: TransactionBench) -> None:
    for who, of in (("old", execution(4, "e0")), ("a", ONE), ("twin", ONE), ("b", OTHER), ("next", NEXT)):
        write(bench, who, of, 2)
    decided = bench.commit(bench.end_request(ONE, {"a": 2}))
    ids = {who: member.producer_id for who, member in bench.known.items()}
    assert isinstance(decided, CommitPrepared)
    assert decided.committed_producer_ids == [ids["a"]]
    assert decided.aborted_producer_ids == [ids["old"], ids["twin"], ids["b"]]
    assert list(bench.coordinator.open_members) == [ids["next"]]


def test_a_partition_gets_one_marker_with_its_winners_and_losers(bench: TransactionBench) -> None:
    for who, of, number in (("a", ONE, 0), ("twin", ONE, 0), ("b", OTHER, 1), ("next", NEXT, 2)):
        write(bench, who, of, 2, number)
    bench.commit(bench.end_request(ONE, {"a": 2}))
    markers = bench.finish()
    ids = {who: member.producer_id for who, member in bench.known.items()}
    assert set(markers) == {partition(0), partition(1)}
    assert list(markers[partition(0)].committed_producer_ids) == [ids["a"]]
    assert list(markers[partition(0)].aborted_producer_ids) == [ids["twin"]]
    assert list(markers[partition(1)].aborted_producer_ids) == [ids["b"]]
    assert (markers[partition(0)].transactional_id, markers[partition(0)].txn_version) == (ID, 5)


@pytest.mark.parametrize(
    ("members", "change", "reason"),
    [
        ({"a": 4}, {}, "reports 4 records, but 3 are there"),
        ({"a": 2}, {}, "reports 2 records, but 3 are there"),
        ({"a": 3, "b": 1}, {}, "reports 1 records, but 0 are there"),
        ({"a": 3, "other": 0}, {}, "is a member of version 5 in execution 'e2'"),
        ({"a": 3, "older": 0}, {}, "is a member of version 4 in execution 'e1'"),
        ({"a": 3, "gone": 0}, {}, "is not open"),
        ({"a": 3}, {"any_skipped": True}, "sent nothing"),
        ({"a": 3, "late": 1}, {}, "not durable"),
        (
            {},
            {"members": [TransactionMember(producer_id=FIRST_PRODUCER_ID, producer_epoch=1, records=3)]},
            "in epoch 1 is not open",
        ),
        ({"a": 3}, {"members": [TransactionMember(producer_id=FIRST_PRODUCER_ID, records=3)]}, "is listed twice"),
    ],
)
def test_a_commit_that_does_not_hold_changes_nothing(
    bench: TransactionBench, members: dict[str, int], change: dict[str, object], reason: str
) -> None:
    write(bench, "a", ONE, 3)
    for who, of in (("b", ONE), ("other", OTHER), ("older", execution(4)), ("gone", ONE), ("late", ONE)):
        bench.init(who, of)
    bench.wrote("late", 1, is_durable=False)
    bench.abort(bench.end_request(ONE, {"gone": 0}))
    before = len(bench.log)
    request = bench.end_request(ONE, members)
    request.asked.MergeFrom(EndTransactionRequest(**change))  # type: ignore[arg-type]
    with pytest.raises(TxnAbortedError, match=reason) as raised:
        bench.commit(request)
    assert "version 5 in execution 'e1'" in raised.value.message
    assert "run the batch again" in raised.value.message
    assert len(bench.log) == before
    assert bench.commit_all(bench.end_request(ONE, {"a": 3})) is Progress.COMPLETE


@pytest.mark.parametrize(("reported", "error"), [(3, None), (4, NotReadyError), (2, NotReadyError)])
def test_records_are_missing_only_once_all_nodes_have_answered(
    bench: TransactionBench, reported: int, error: type[Exception] | None
) -> None:
    write(bench, "a", ONE, 3)
    held = Held(summed(bench.data.values()), silent=[7])
    asked = bench.end_request(ONE, {"a": reported}).asked
    with pytest.raises(error, match="node 7 does not answer") if error is not None else nullcontext():
        bench.coordinator.commit(PRINCIPAL, asked, held)


def test_records_of_several_partitions_are_added_up(bench: TransactionBench) -> None:
    write(bench, "a", ONE, 3)
    bench.wrote("a", 4, partition(1))
    assert isinstance(bench.commit(bench.end_request(ONE, {"a": 7})), CommitPrepared)


def test_counts_wrap_as_partitions_count(bench: TransactionBench) -> None:
    write(bench, "a", ONE, 5)
    assert isinstance(bench.commit(bench.end_request(ONE, {"a": 5 + (1 << 31)})), CommitPrepared)


def test_a_deleted_topic_counts_as_done(bench: TransactionBench) -> None:
    write(bench, "a", ONE, 3)
    bench.wrote("a", 4, partition(0, "deleted"))
    bench.deleted = {partition(0, "deleted")}
    with pytest.raises(TxnAbortedError, match="reports 2 records, but 3 are there"):
        bench.commit(bench.end_request(ONE, {"a": 2}))
    decided = bench.commit(bench.end_request(ONE, {"a": 7}))
    assert isinstance(decided, CommitPrepared)
    assert [(one.topic_id, one.partition) for one in decided.partitions] == [partition(0)]


def test_while_a_commit_is_prepared_every_commit_finishes_it_first(bench: TransactionBench) -> None:
    write(bench, "a", ONE, 3)
    write(bench, "b", NEXT, 2)
    bench.commit(bench.end_request(ONE, {"a": 3}))
    for asked in (bench.end_request(ONE, {"a": 3}), bench.end_request(NEXT, {"b": 2}), bench.end_request(OTHER, None, totals(9))):
        assert bench.commit(asked) is Progress.UNFINISHED
    with pytest.raises(ProducerFencedError):
        bench.commit(bench.end_request(execution(4)))
    bench.finish()
    assert isinstance(bench.commit(bench.end_request(NEXT, {"b": 2})), CommitPrepared)


def test_a_commit_before_the_last_one_is_known_by_its_execution_and_rows(committed: TransactionBench) -> None:
    """Its response was lost, and another driver committed newer versions."""
    again = committed.end_request(ONE, {"a": 3})
    for version in range(6, 6 + EARLIER_MAX):
        committed.commit_all(committed.end_request(execution(version, "e9", "r9")))
        committed.restart()
        committed.compact()
        committed.restart()
        assert committed.commit(again) is Progress.COMPLETE
        for other in (committed.end_request(OTHER, {"a": 3}), committed.end_request(ONE, {"a": 3}, totals(3, hash_sum=9))):
            with pytest.raises(ProducerFencedError, match="nothing of this one is visible") as raised:
                committed.commit(other)
            assert raised.value.fate is Fate.NOT_APPENDED
    committed.commit_all(committed.end_request(execution(6 + EARLIER_MAX, "e9", "r9")))
    with pytest.raises(ProducerFencedError, match="it is no longer known whether this one was committed before") as raised:
        committed.commit(again)
    assert raised.value.fate is Fate.UNKNOWN


def test_a_commit_before_the_last_one_is_no_replay_of_the_last_one(committed: TransactionBench) -> None:
    """A driver that retries its older commit may still replay the newest version, which another driver has committed."""
    committed.commit_all(committed.end_request(execution(6, "e9", "r9")))
    committed.commit(committed.end_request(ONE, {"a": 3}))
    with pytest.raises(AlreadyCommittedError):
        committed.init("b", NEXT)
    assert committed.commit(committed.end_request(NEXT)) is Progress.COMPLETE


@pytest.mark.parametrize(
    ("name", "old", "other_rows"),
    [
        ("spark-q", "old or copied checkpoint, .* restore the newest checkpoint", "restore the right checkpoint"),
        (
            "app-etl/t",
            "continue above 5, or, if it begins anew, .* another txnAppId",
            "above 5, or, if it begins anew, .* another txnAppId",
        ),
        ("nightly", "Versions of a transactional id must rise: continue above 5", "a version above 5, or, .* another id"),
    ],
)
def test_the_advice_is_for_whoever_chose_the_id(bench: TransactionBench, name: str, old: str, other_rows: str) -> None:
    bench.commit_all(bench.end_request(ONE, None, totals(3), name=name))
    with pytest.raises(ProducerFencedError, match=old):
        bench.commit(bench.end_request(execution(4, "e9", "r9"), name=name))
    with pytest.raises(ProducerFencedError, match=old):
        bench.init("a", execution(4, "e9", "r9"), name=name)
    with pytest.raises(ReplayMismatchError, match=other_rows):
        bench.commit(bench.end_request(execution(5, "e9", "r9"), None, totals(2), name=name))


def test_a_zero_row_commit_is_recorded_too(bench: TransactionBench) -> None:
    assert bench.commit_all(bench.end_request(ONE)) is Progress.COMPLETE
    with pytest.raises(AlreadyCommittedError):
        bench.init("a", OTHER)
    with pytest.raises(ProducerFencedError):
        bench.init("a", execution(4))
    assert bench.commit_all(bench.end_request(NEXT)) is Progress.COMPLETE


# --- replays


@pytest.mark.parametrize("of", [ONE, OTHER])
def test_a_replay_with_equal_totals_is_done(committed: TransactionBench, of: object) -> None:
    asked = committed.end_request(of, None, totals(3), skipped=True)  # type: ignore[arg-type]
    assert committed.commit_all(asked) is Progress.COMPLETE


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        (totals(2), "rows 2 instead of 3"),  # a copied checkpoint: fewer rows
        (NOTHING, "rows 0 instead of 3"),
        (totals(3, hash_sum=9), r"\(key_hash_sum 9 instead of 3000\)"),  # as many rows, but other keys
        (TransactionTotals(rows=3, key_bytes=12, value_bytes=31, key_hash_sum=3_000), r"\(value_bytes 31 instead of 30\)"),
        (TransactionTotals(rows=3, key_bytes=13, value_bytes=30, key_hash_sum=3_000), r"\(key_bytes 13 instead of 12\)"),
    ],
)
def test_a_replay_with_other_totals_is_a_mismatch(committed: TransactionBench, found: TransactionTotals, difference: str) -> None:
    with pytest.raises(ReplayMismatchError, match=difference) as raised:
        committed.commit_all(committed.end_request(OTHER, None, found))
    assert "version 5 in execution 'e2': version 5 in execution 'e1' of run 'r1' is committed" in raised.value.message


def test_a_copied_checkpoint_with_equal_rows_goes_on(committed: TransactionBench) -> None:
    committed.commit_all(committed.end_request(OTHER, None, totals(3)))
    write(committed, "b", execution(6, "e4", "r2"), 4)
    assert committed.commit_all(committed.end_request(execution(6, "e4", "r2"), {"b": 4})) is Progress.COMPLETE


def test_a_second_write_of_the_same_run_is_a_conflict_even_with_equal_totals(committed: TransactionBench) -> None:
    for of_totals in (totals(3), totals(4)):
        with pytest.raises(TxnConflictError, match="another write of the same micro-batch or run"):
            committed.commit_all(committed.end_request(SECOND, None, of_totals))


def test_a_run_that_repeated_another_version_may_write_this_one(committed: TransactionBench) -> None:
    committed.commit_all(committed.end_request(execution(5, "e7", "r2"), None, totals(3)))
    committed.commit(committed.end_request(execution(6, "e9", "r3"), None, totals(2)))
    committed.finish("spark-q")
    assert committed.commit_all(committed.end_request(execution(6, "e8", "r2"), None, totals(2))) is Progress.COMPLETE


@pytest.mark.parametrize("what", ["", "restart", "compact"])
def test_every_run_that_repeated_a_version_is_known_whatever_the_broker_does(committed: TransactionBench, what: str) -> None:
    """A driver may be paused between its two writes while others repeat the first."""
    runs = ["r2", "r3", "r4"]
    for run in runs:
        committed.commit_all(committed.end_request(execution(5, f"first of {run}", run), None, totals(3)))
    if what == "compact":
        committed.compact()
    if what:
        committed.restart()
    for run in ["r1", *runs]:
        with pytest.raises(TxnConflictError):
            committed.init("b", execution(5, f"second of {run}", run))
        with pytest.raises(TxnConflictError):
            committed.commit_all(committed.end_request(execution(5, f"second of {run}", run), None, totals(3)))
        before = len(committed.log)
        again = execution(5, "e1" if run == "r1" else f"first of {run}", run)
        assert committed.commit_all(committed.end_request(again, None, totals(3))) is Progress.COMPLETE
        assert len(committed.log) == before, "what is known is recorded again"


def test_runs_that_are_remembered_are_bounded(committed: TransactionBench) -> None:
    for number in range(REPEATS_MAX + 5):
        committed.commit_all(committed.end_request(execution(5, f"x{number}", f"y{number}"), None, totals(3)))
    repeats = committed.coordinator.states[ID].repeats
    assert [known.run_id for known in repeats] == [f"y{number}" for number in range(5, REPEATS_MAX + 5)]


def test_a_repetition_of_no_run_is_not_recorded(committed: TransactionBench) -> None:
    before = len(committed.log)
    assert committed.commit_all(committed.end_request(execution(5, "e7", ""), None, totals(3))) is Progress.COMPLETE
    assert len(committed.log) == before


def test_another_id_is_asked_for_where_there_is_no_label(bench: TransactionBench) -> None:
    bench.commit_all(bench.end_request(ONE, name="mine"))
    with pytest.raises(TxnConflictError, match="give this write a transactional id of its own"):
        bench.init("b", SECOND, name="mine")


def test_a_second_write_of_the_same_run_without_rows_is_done(committed: TransactionBench) -> None:
    assert committed.commit_all(committed.end_request(SECOND)) is Progress.COMPLETE


# --- abort


def test_an_abort_ends_the_listed_members_alone(bench: TransactionBench) -> None:
    for who, of in (("a", ONE), ("b", ONE), ("c", OTHER)):
        bench.init(who, of)
    ids = {who: member.producer_id for who, member in bench.known.items()}
    assert bench.abort(bench.end_request(ONE, {"a": 0, "c": 0})) == [ids["a"]]
    assert bench.abort(bench.end_request(ONE, {"a": 0})) == []
    assert set(bench.coordinator.open_members) == {ids["b"], ids["c"]}


def test_an_abort_without_members_has_no_effect(bench: TransactionBench) -> None:
    bench.init("a", ONE)
    assert bench.abort(bench.end_request(ONE)) == []


def test_an_abort_of_an_older_version_has_no_effect(committed: TransactionBench) -> None:
    assert committed.abort(committed.end_request(execution(4), {"a": 3})) == []


def test_an_abort_of_a_committed_version_is_refused(committed: TransactionBench) -> None:
    with pytest.raises(AlreadyCommittedError):
        committed.abort(committed.end_request(ONE, {"a": 3}))


# --- scenarios


def test_the_drivers_abort_after_an_ambiguous_commit(bench: TransactionBench) -> None:
    """COMMIT is decided, its response is lost, and the driver calls abort(): the commit stands."""
    write(bench, "a", ONE, 3)
    asked = bench.end_request(ONE, {"a": 3})
    bench.commit(asked)
    with pytest.raises(AlreadyCommittedError):
        bench.abort(asked)
    bench.restart()
    with pytest.raises(AlreadyCommittedError):
        bench.abort(asked)
    assert bench.commit_all(asked) is Progress.COMPLETE


def test_a_commit_delayed_past_an_abort_and_a_new_execution(bench: TransactionBench) -> None:
    write(bench, "a", ONE, 3)
    late = bench.end_request(ONE, {"a": 3})
    bench.abort(late)
    write(bench, "b", OTHER, 3)
    with pytest.raises(TxnAbortedError, match="is not open"):
        bench.commit(late)
    assert bench.commit_all(bench.end_request(OTHER, {"b": 3})) is Progress.COMPLETE
    assert bench.commit_all(late) is Progress.COMPLETE  # the same rows, committed once


@pytest.mark.parametrize("commit_is_first", [True, False])
def test_expiry_racing_commit(bench: TransactionBench, commit_is_first: bool) -> None:
    write(bench, "a", ONE, 3)
    asked = bench.end_request(ONE, {"a": 3})
    bench.now_ms = TIMEOUT_MS
    (due,) = bench.coordinator.expired(bench.now_ms)
    if commit_is_first:
        assert isinstance(bench.commit(asked), CommitPrepared)
        assert bench.coordinator.expire(due, bench.now_ms) is None
        assert bench.commit_all(asked) is Progress.COMPLETE
    else:
        assert len(bench.end(bench.coordinator.expire(due, bench.now_ms))) == 1
        with pytest.raises(TxnAbortedError, match="it expired"):
            bench.commit(asked)


def test_expiry_racing_a_sign_of_life(bench: TransactionBench) -> None:
    member = bench.init("a", ONE)
    bench.now_ms = TIMEOUT_MS
    (due,) = bench.coordinator.expired(bench.now_ms)
    bench.coordinator.renew(member.producer_id, bench.now_ms)
    assert bench.coordinator.expire(due, bench.now_ms) is None


def test_one_transactional_id_in_two_queries(bench: TransactionBench) -> None:
    """Both begin at version 0 with different rows: the first commit wins, and the other query gets an error."""
    mine, theirs = execution(0, "e1", "r1"), execution(0, "e2", "r2")
    write(bench, "a", mine, 3)
    write(bench, "b", theirs, 4)
    bench.commit_all(bench.end_request(mine, {"a": 3}))
    with pytest.raises(ReplayMismatchError):
        bench.commit_all(bench.end_request(theirs, {"b": 4}))
    with pytest.raises(AlreadyCommittedError):
        bench.init("c", theirs)


def test_a_task_silent_for_three_timeouts(bench: TransactionBench) -> None:
    member = bench.init("a", ONE)
    bench.now_ms = 3 * TIMEOUT_MS
    assert bench.expire() == [member.producer_id]
    assert member.producer_id not in bench.coordinator.open_members
    with pytest.raises(InvalidTxnStateError, match="is not open"):
        bench.heartbeat(ONE, member.member_id)
    with pytest.raises(InvalidTxnStateError):
        bench.init("a", ONE)
    write(bench, "again", ONE, 3)  # the task's new member
    assert bench.commit_all(bench.end_request(ONE, {"again": 3})) is Progress.COMPLETE
