"""Replay of the coordinator's log: events and snapshots (states), complete, torn or with lost records; and its record format."""

from __future__ import annotations

import pytest

from brokerd.coordinator import loading
from brokerd.coordinator.records import decode, offsets_committed, record_of
from brokerd.coordinator.transaction_coordinator import PIECE_BYTES_MAX, PIECE_ENTRIES_MAX
from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.wire.v1.coordinator_log_pb2 import CoordinatorRecord, MemberOpened, StateEnds, TransactionalIdForgotten
from tests.support.transaction_bench import ID, PRINCIPAL, TransactionBench, execution, known_of

ONE = execution(5)
LOST = None
Record = CoordinatorRecord | None


@pytest.fixture
def bench() -> TransactionBench:
    """An empty coordinator."""
    return TransactionBench(ids=100, members=1_000)


@pytest.fixture
def lived(bench: TransactionBench) -> TransactionBench:
    """One id with a completed commit and an open member, one with a prepared commit, one with its first open member."""
    for who, of in (("a", ONE), ("b", ONE), ("c", execution(6, "e2"))):
        bench.init(who, of)
    bench.wrote("a", 3)
    bench.commit_all(bench.end_request(ONE, {"a": 3}))
    bench.init("d", ONE, name="prepared")
    bench.commit(bench.end_request(ONE, {"d": 0}, name="prepared"))
    bench.init("e", ONE, name="new")
    return bench


def known(bench: TransactionBench) -> list[object]:
    """The coordinator's whole state, and the slots in use."""
    return [*known_of(bench.coordinator), bench.ids.taken, bench.members.taken]


def load(bench: TransactionBench, entries: list[Record], start: int = 0) -> None:
    """Loads a new coordinator from these records."""
    bench.ids.taken = bench.members.taken = 0
    bench.coordinator = loading.load(entries, start, bench._new, bench.now_ms)


def load_fails(bench: TransactionBench, log: list[bytes], start: int = 0) -> None:
    """Loading fails because there is no complete snapshot."""
    with pytest.raises(CorruptMessageError, match="nothing that replaces it"):
        load(bench, [decode(data) for data in log], start)


def decoded(batches: list[list[bytes]]) -> list[Record]:
    """The records of these batches."""
    return [decode(data) for batch in batches for data in batch]


# --- complete snapshots


def test_the_log_read_again_is_the_same_state(lived: TransactionBench) -> None:
    before = known(lived)
    lived.restart()
    assert known(lived) == before


@pytest.mark.parametrize("entries_max", [1, 2, 3, PIECE_ENTRIES_MAX])
def test_a_state_is_the_same_as_the_log(lived: TransactionBench, entries_max: int) -> None:
    before = known(lived)
    lived.log = [data for piece in lived.state_pieces(entries_max) for data in piece]
    lived.restart()
    assert known(lived) == before
    lived.finish("prepared")
    lived.abort(lived.end_request(ONE, {"e": 0}, name="new"))
    assert sorted(lived.coordinator.states) == ["prepared", ID]
    lived.restart()
    assert lived.coordinator.prepared() == []


def test_a_state_of_nothing(lived: TransactionBench) -> None:
    log, nothing = list(lived.log), TransactionBench()
    state = [data for piece in nothing.state_pieces() for data in piece]
    assert [decode(data).WhichOneof("event") for data in state] == ["state_begins", "state_ends"]
    for start in (log, []):
        lived.log = start + state + state
        lived.restart()
        assert known(lived) == [[], set(), 0, 0]


def test_the_newest_of_several_states_counts(lived: TransactionBench) -> None:
    for _ in range(2):
        lived.log += [data for piece in lived.state_pieces(2) for data in piece]
        lived.abort(lived.end_request(ONE, {"e": 0}, name="new"))
    before = known(lived)
    lived.restart()
    assert known(lived) == before


def test_a_later_commit_stands_for_the_completion_of_the_one_before(bench: TransactionBench) -> None:
    bench.commit_all(bench.end_request(ONE))
    bench.log.pop()
    bench.commit_all(bench.end_request(execution(6)))
    bench.restart()
    assert bench.coordinator.prepared() == []
    assert bench.coordinator.states[ID].last_version == 6


# --- pieces


def test_pieces_have_a_limit_of_entries_and_of_bytes(bench: TransactionBench) -> None:
    for number in range(PIECE_ENTRIES_MAX):
        bench.commit_all(bench.end_request(ONE, name=f"id-{number}"))  # two entries each
    counts = [len(piece) for piece in bench.state_pieces()]
    assert counts == [PIECE_ENTRIES_MAX + 1, PIECE_ENTRIES_MAX, 1], "with a beginning, and an end"
    owner = "x" * (PIECE_BYTES_MAX // 3)
    for number in range(8):
        member_id = bytes([number]) * 16
        bench.record(MemberOpened(member_id=member_id, producer_id=number, owner=owner, timeout_ms=1_000, txn_version=6))
    sizes = [sum(map(len, piece)) for piece in bench.state_pieces()]
    assert max(sizes) < PIECE_BYTES_MAX + 2 * len(owner)
    assert sum(sizes) > 8 * len(owner)


@pytest.mark.parametrize("entries_max", [1, 2, 3])
@pytest.mark.parametrize("at", range(8))
def test_events_among_the_pieces_count_after_the_state(lived: TransactionBench, entries_max: int, at: int) -> None:
    """This holds for ids already written to the snapshot, and for ids not yet written."""
    for number, piece in enumerate(lived.state_pieces(entries_max)):
        lived.log += piece
        if number == at:
            lived.finish("prepared")
            lived.commit(lived.end_request(execution(6, "e2"), {"c": 0}))
            lived.abort(lived.end_request(ONE, {"e": 0}, name="new"))
            lived.init("f", ONE, name="another")
            lived.init("g", execution(7), name="prepared")
        elif number == at + 1:
            lived.init("h", execution(1), name="new")
            lived.finish()
            lived.abort(lived.end_request(ONE, {"f": 0}, name="another"))
    before = known(lived)
    begins = next(place for place, data in enumerate(lived.log) if decode(data).HasField("state_begins"))
    for start in (0, begins):  # the log before the snapshot may be deleted
        lived.log = lived.log[start:]
        lived.restart()
        assert known(lived) == before


def test_what_ended_while_a_state_was_written_does_not_begin_again(bench: TransactionBench) -> None:
    bench.init("a", ONE)
    bench.commit_all(bench.end_request(ONE, name="b"))
    for number, piece in enumerate(bench.state_pieces(1)):
        bench.log += piece
        if number == 1:
            bench.abort(bench.end_request(ONE, {"a": 0}))
    bench.restart()
    assert (ID, bench.known["a"].member_id) in bench.coordinator._ended


# --- torn snapshots


@pytest.mark.parametrize("entries_max", [1, 2, 3])
def test_a_state_without_its_end_counts_for_nothing_wherever_it_stands(lived: TransactionBench, entries_max: int) -> None:
    log = list(lived.log)
    pieces = list(lived.state_pieces(entries_max))
    for count in range(1, len(pieces)):
        torn = [data for piece in pieces[:count] for data in piece]
        lived.log = log + torn
        lived.restart()
        lived.finish("prepared")  # an event after the torn snapshot
        before = known(lived)
        lived.log += torn
        lived.init("f", ONE, name="another")
        lived.abort(lived.end_request(ONE, {"f": 0}, name="another"))
        lived.restart()
        assert known(lived) == before, count
        lived.log += [data for piece in lived.state_pieces(entries_max) for data in piece]
        lived.restart()
        assert known(lived) == before


def test_a_state_without_its_end_before_which_nothing_stands_is_refused(lived: TransactionBench) -> None:
    pieces = list(lived.state_pieces(2))
    lived.log = [data for piece in pieces[:-1] for data in piece]
    with pytest.raises(CorruptMessageError, match="a state without its end"):
        lived.restart()


def test_a_state_that_is_not_whole_is_refused(lived: TransactionBench) -> None:
    pieces = list(lived.state_pieces(1))
    for missing in range(1, len(pieces) - 1):
        names = {decode(data).transactional_id for piece in pieces[:missing] + pieces[missing + 1 :] for data in piece}
        if len(names) == 4:  # all three ids are still there
            continue
        lived.log = [data for number, piece in enumerate(pieces) for data in piece if number != missing]
        with pytest.raises(CorruptMessageError, match="ends with 3 transactional ids, but 2 were read"):
            lived.restart()


def test_a_piece_or_an_end_without_a_beginning_is_refused(lived: TransactionBench) -> None:
    log, pieces = list(lived.log), list(lived.state_pieces(2))
    lived.log = log + pieces[1]
    with pytest.raises(CorruptMessageError, match="lost its beginning"):
        lived.restart()
    lived.log = [*log, record_of("", "", 1, StateEnds()).SerializeToString()]
    with pytest.raises(CorruptMessageError, match="lost its beginning"):
        lived.restart()


@pytest.mark.parametrize("begins", [1, 3, -1])
def test_a_log_that_begins_among_the_parts_of_a_state_is_read_if_a_whole_one_follows(lived: TransactionBench, begins: int) -> None:
    """A segment may begin there, and become the log's start if the log start offset is lost."""
    pieces = list(lived.state_pieces(1))
    rest = [data for piece in pieces[begins:] for data in piece]
    state = [data for piece in pieces for data in piece]
    lived.log = list(rest)
    lived.finish("prepared")
    before = known(lived)
    events = lived.log[len(rest) :]
    for tail in ([], state[:-1]):
        lived.log = [*rest, *events, *state, *events, *tail]
        lived.restart()
        assert known(lived) == before
    for ending in (events, state[:-1]):
        load_fails(lived, [*rest, *ending])


def test_a_log_that_begins_with_a_torn_state_is_read_if_a_whole_one_follows(lived: TransactionBench) -> None:
    state = [data for piece in lived.state_pieces(1) for data in piece]
    before = known(lived)
    for torn in range(1, len(state)):
        lived.log = state[:torn] + state
        lived.restart()
        assert known(lived) == before
        load_fails(lived, state[:torn] + state[:torn])


def test_a_log_that_has_lost_its_beginning_needs_a_whole_state(lived: TransactionBench) -> None:
    """Records of groups, alone or first, are no substitute: they say nothing about transactions."""
    group = offsets_committed("g", PRINCIPAL, []).SerializeToString()
    state = [data for piece in lived.state_pieces(1) for data in piece]
    for rest in ([], [group], [group, *lived.log]):
        load_fails(lived, rest, start=1)
        load_fails(lived, [*rest, *state[:-1], group], start=1)
        load(lived, decoded([[*rest, *state[:-1], group, state[-1]]]), start=1)
    load(lived, decoded([[group, *state[:-1]]]))  # begins at offset 0
    assert known(lived)[0] == [], "a state that is not whole counts for nothing where nothing was given up"
    load(lived, [LOST, *decoded([lived.log])], start=1)


def test_lost_entries_after_parts_of_no_use_leave_what_follows(lived: TransactionBench) -> None:
    pieces: list[list[Record]] = [decoded([piece]) for piece in lived.state_pieces(1)]
    useless = [entry for piece in pieces[1:] for entry in piece]
    for lost in range(len(pieces)):
        left = [entry for number, piece in enumerate(pieces) for entry in ([LOST] if number == lost else piece)]
        load(lived, left)
        found = known(lived)
        load(lived, [*useless, *left])
        assert known(lived) == found


# --- lost records


def test_a_state_that_lost_a_part_counts_if_nothing_else_is_left(lived: TransactionBench) -> None:
    """Its other pieces are used, and all later events."""
    pieces: list[list[Record]] = [decoded([piece]) for piece in lived.state_pieces(1)]
    lived.finish("prepared")
    after = decode(lived.log[-1])
    for lost in range(len(pieces)):
        parts: list[list[Record]] = [*pieces[:lost], [LOST], *pieces[lost + 1 :], [after]]
        load(lived, [entry for part in parts for entry in part])
        left = {
            entry.transactional_id for number, piece in enumerate(pieces) if number != lost for entry in piece if entry is not None
        } - {""}
        found = set(lived.coordinator.states)
        assert left - found <= {"prepared", ID}, "a completion, without its commit, is nothing"
        assert found <= left


def test_a_state_that_lost_a_part_counts_for_nothing_if_the_log_before_it_is_there(lived: TransactionBench) -> None:
    before, log = known(lived), decoded([lived.log])
    pieces: list[list[Record]] = [decoded([piece]) for piece in lived.state_pieces(1)]
    for lost in range(len(pieces)):
        parts: list[list[Record]] = [log, *pieces[:lost], [LOST], *pieces[lost + 1 :]]
        load(lived, [entry for part in parts for entry in part])
        assert known(lived) == before, lost
        load(lived, [*(entry for part in parts for entry in part), *(entry for piece in pieces for entry in piece)])
        assert known(lived) == before, "a whole one follows"


def test_lost_events_are_passed(lived: TransactionBench) -> None:
    log = decoded([lived.log])
    for lost in range(len(log)):
        load(lived, [*log[:lost], LOST, *log[lost + 1 :]])
        found = known(lived)
        load(lived, [*log[:lost], *log[lost + 1 :]])
        assert known(lived) == found


# --- records


def test_the_owner_of_an_id_stays_in_a_state(bench: TransactionBench) -> None:
    member = bench.init("a", ONE)
    bench.compact()
    (kept,) = [record for record in map(decode, bench.log) if record.transactional_id]
    assert kept == record_of(ID, PRINCIPAL, kept.timestamp, member, in_state=True)


def test_an_unknown_version_is_refused() -> None:
    record = record_of("x", "p", 1, TransactionalIdForgotten())
    record.version = 2
    with pytest.raises(UnsupportedVersionError, match="has version 2; this broker reads 1"):
        decode(record.SerializeToString())
    with pytest.raises(UnsupportedVersionError, match="has version 0"):
        decode(b"")


@pytest.mark.parametrize("data", [b"\xff\xff", CoordinatorRecord(version=1).SerializeToString()])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptMessageError, match="coordinator's log"):
        decode(data)
