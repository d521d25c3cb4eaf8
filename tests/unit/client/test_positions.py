"""Goal: of the broker's responses, exactly the range is read: cut at both ends, without control and aborted batches, across gaps,
ending with or without records at the end. Method: batches as data, fed to a RangePosition.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from brokerd.client.fetching import NO_END, FetchRange, PartitionResult, RangePosition, is_aborted
from brokerd.errors import CorruptMessageError, LogDamagedError, NotLeaderError, WireError
from brokerd.record.header import Attributes
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import fetch_pb2
from tests.support.records import TP, header_of, key_values, new_batch, spoilt, stamped

CONTROL = Attributes.CONTROL | Attributes.TRANSACTIONAL
TRANSACTIONAL = Attributes.TRANSACTIONAL


def batch(base_offset: int, count: int, *, attributes: int = 0, producer_id: int = -1) -> pa.Buffer:
    data = new_batch(key_values([b"v"] * count), attributes=int(attributes), producer_id=producer_id)
    head = stamped(data.slice(0, 96).to_pybytes(), base_offset=base_offset, append_timestamp=1, leader_epoch=1)
    return pa.py_buffer(head + data.slice(96).to_pybytes())


def answer(
    *batches: pa.Buffer,
    end: int = 1_000,
    stable: int | None = None,
    aborted: Sequence[fetch_pb2.AbortedTransaction] = (),
    error: WireError | None = None,
) -> PartitionResult:
    chunks = [pa.py_buffer(b"".join(data.to_pybytes() for data in batches))] if batches else []
    result = fetch_pb2.PartitionFetchResult(
        topic_id=TP.topic_id,
        partition=TP.partition,
        error=None if error is None else to_proto(error),
        high_watermark=end,
        last_stable_offset=end if stable is None else stable,
        aborted=aborted,
    )
    return result, chunks


def position(start: int, until: int, *, is_read_committed: bool = True) -> RangePosition:
    return RangePosition(FetchRange(TP, start, until), is_read_committed=is_read_committed, check_crcs=True)


def ranges(reader: RangePosition, result: PartitionResult) -> list[tuple[int, int]]:
    return [(piece.from_offset, piece.until_offset) for piece in reader.accept(*result)]


def test_whole_batches_are_read_whole() -> None:
    reader = position(0, NO_END)
    assert ranges(reader, answer(batch(0, 10), batch(10, 5))) == [(0, 10), (10, 15)]
    assert reader.next_offset == 15
    assert not reader.is_done


def test_first_and_last_batch_are_cut_to_the_range() -> None:
    reader = position(3, 12)
    assert ranges(reader, answer(batch(0, 10), batch(10, 5))) == [(3, 10), (10, 12)]
    assert reader.is_done


def test_range_within_one_batch() -> None:
    reader = position(3, 4)
    assert ranges(reader, answer(batch(0, 10))) == [(3, 4)]
    assert reader.is_done


def test_batches_of_the_offsets_before_are_left_out() -> None:
    reader = position(10, NO_END)
    assert ranges(reader, answer(batch(0, 10), batch(10, 5))) == [(10, 15)]


def test_control_batches_take_offsets_and_are_left_out() -> None:
    reader = position(0, 12)
    assert ranges(reader, answer(batch(0, 10), batch(10, 1, attributes=CONTROL), batch(11, 1, attributes=CONTROL))) == [(0, 10)]
    assert reader.is_done


def test_gap_within_the_range_is_passed() -> None:
    reader = position(0, 30)
    assert ranges(reader, answer(batch(0, 10), batch(20, 5))) == [(0, 10), (20, 25)]
    assert reader.next_offset == 25


def test_gap_at_the_end_of_the_range_ends_it() -> None:
    reader = position(0, 15)
    assert ranges(reader, answer(batch(0, 10), batch(20, 5))) == [(0, 10)]
    assert reader.is_done


def test_two_empty_answers_of_a_log_that_reaches_past_the_range_end_it() -> None:
    reader = position(10, 15)
    assert ranges(reader, answer(end=15)) == []
    assert not reader.is_done
    assert ranges(reader, answer(end=15)) == []
    assert reader.is_done


def test_empty_answers_of_a_log_that_does_not_reach_the_end_never_end_the_range() -> None:
    reader = position(10, 15)
    for _ in range(5):
        assert ranges(reader, answer(end=14)) == []
    assert not reader.is_done
    assert reader.end_offset == 14


def test_last_stable_offset_is_the_end_for_read_committed_only() -> None:
    committed, uncommitted = position(10, 15), position(10, 15, is_read_committed=False)
    for reader in (committed, uncommitted):
        for _ in range(2):
            reader.accept(*answer(end=20, stable=12))
    assert not committed.is_done
    assert uncommitted.is_done


def test_empty_answers_count_only_in_a_row() -> None:
    reader = position(0, 30)
    reader.accept(*answer(end=30))
    reader.accept(*answer(batch(0, 10), end=30))
    reader.accept(*answer(end=30))
    assert not reader.is_done


def test_empty_answers_whose_bytes_others_have_used_up_never_end_the_range() -> None:
    reader = position(0, 30)
    for _ in range(5):
        assert reader.accept(*answer(end=30), had_room=False) == []
    assert not reader.is_done
    assert ranges(reader, answer(batch(0, 30), end=30)) == [(0, 30)]


def test_aborted_batches_are_left_out_for_read_committed() -> None:
    history = [
        batch(0, 5, attributes=TRANSACTIONAL, producer_id=7),
        batch(5, 5, attributes=TRANSACTIONAL, producer_id=8),
        batch(10, 1, attributes=CONTROL, producer_id=7),
        batch(11, 5, attributes=TRANSACTIONAL, producer_id=7),
    ]
    aborted = [fetch_pb2.AbortedTransaction(producer_id=7, first_offset=0, marker_offset=10)]
    assert ranges(position(0, 16), answer(*history, aborted=aborted)) == [(5, 10), (11, 16)]
    assert ranges(position(0, 16, is_read_committed=False), answer(*history, aborted=aborted)) == [(0, 5), (5, 10), (11, 16)]


@pytest.mark.parametrize(
    ("base_offset", "producer_id", "attributes", "expected"),
    [
        (10, 7, TRANSACTIONAL, True),  # the transaction's first offset
        (15, 7, TRANSACTIONAL, True),
        (9, 7, TRANSACTIONAL, False),  # before the transaction
        (20, 7, TRANSACTIONAL, False),  # the marker's offset, and beyond
        (30, 7, TRANSACTIONAL, False),
        (15, 8, TRANSACTIONAL, False),  # another producer
        (15, 7, 0, False),  # not transactional
    ],
)
def test_is_aborted_needs_producer_and_range(base_offset: int, producer_id: int, attributes: int, expected: bool) -> None:
    header = header_of(batch(base_offset, 1, attributes=attributes, producer_id=producer_id))
    assert is_aborted(header, [fetch_pb2.AbortedTransaction(producer_id=7, first_offset=10, marker_offset=20)]) is expected


def test_error_of_the_partition_is_raised() -> None:
    with pytest.raises(LogDamagedError, match="bad"):
        position(0, 5).accept(*answer(error=LogDamagedError("bad")))


def test_answer_that_makes_no_progress_is_refused() -> None:
    with pytest.raises(CorruptMessageError, match="older batches"):
        position(10, NO_END).accept(*answer(batch(0, 10)))


def refuses(reader: RangePosition, data: pa.Buffer, *, match: str) -> None:
    """Asserts that the batch is fetched once more, and then refused."""
    assert reader.accept(*answer(data)) == []
    assert reader.is_in_doubt
    with pytest.raises(CorruptMessageError, match=match):
        reader.accept(*answer(data))


@pytest.mark.parametrize("at", [20, -10], ids=["header", "payload"])
def test_a_batch_that_changed_on_the_way_is_asked_for_once_more(at: int) -> None:
    reader = position(0, NO_END)
    assert ranges(reader, answer(batch(0, 10), spoilt(batch(10, 10), at), batch(20, 5))) == [(0, 10)]
    assert (reader.next_offset, reader.is_in_doubt) == (10, False), "what is before it does not wait"
    assert ranges(reader, answer(spoilt(batch(10, 10), at), batch(20, 5))) == []
    assert (reader.next_offset, reader.is_in_doubt) == (10, True)
    with pytest.raises(NotLeaderError):
        reader.accept(*answer(error=NotLeaderError("another replica will lead")))
    assert reader.is_in_doubt, "the next leader checks its copy, too"
    assert ranges(reader, answer(batch(10, 10))) == [(10, 20)]
    assert (reader.next_offset, reader.is_in_doubt) == (20, False)
    assert ranges(reader, answer(spoilt(batch(20, 5), at))) == []
    assert (reader.next_offset, reader.is_in_doubt) == (20, True), "each batch has a second chance"


def test_a_payload_that_is_wrong_after_the_check_fails_where_it_is_decoded() -> None:
    reader = position(0, NO_END)
    wrong = spoilt(batch(0, 10))
    assert reader.accept(*answer(wrong)) == []
    found = reader.accept(*answer(wrong, batch(10, 5), spoilt(batch(15, 5))))
    assert [(one.from_offset, one.is_checked) for one in found] == [(0, False), (10, True)]
    assert (reader.next_offset, reader.is_in_doubt) == (15, False)


def test_damage_that_the_only_copy_has_is_told_as_the_batch_tells_it() -> None:
    wrong = spoilt(batch(0, 10))
    reader, passing = position(0, NO_END), past_damage(0, NO_END)
    for each in (reader, passing):
        assert each.accept(*answer(wrong)) == []
    with pytest.raises(CorruptMessageError, match=r"batch at offset 0: payload_crc.*brokerd doctor"):
        reader.accept(*damage(10))
    assert ranges(passing, damage(10)) == []
    assert (passing.next_offset, passing.is_in_doubt) == (10, False)


def test_batch_of_another_partition_is_refused() -> None:
    data = batch(0, 10).to_pybytes()
    other = RangePosition(FetchRange(TP._replace(partition=TP.partition + 1), 0), is_read_committed=True, check_crcs=True)
    refuses(other, pa.py_buffer(data), match="header_crc")


def test_what_is_refused_is_told_with_the_partition() -> None:
    for data in (spoilt(batch(0, 10), 20), pa.py_buffer(bytes(200)), new_batch(key_values([b"v"]), last_offset_delta=-5)):
        named = RangePosition(FetchRange(TP, 0, NO_END, "events"), is_read_committed=True, check_crcs=True)
        refuses(named, data, match=r"^events-3: ")


def test_batch_that_claims_negative_length_of_offsets_is_refused() -> None:
    data = new_batch(key_values([b"v"]), last_offset_delta=-5)
    refuses(position(0, NO_END), data, match="last_offset_delta is -5")


@pytest.mark.parametrize("base_offset", [2**63 - 1, 2**63 - 9])
def test_a_batch_at_an_offset_that_no_log_has_is_refused(base_offset: int) -> None:
    refuses(position(0, NO_END), batch(base_offset, 10), match="which is not a valid offset")


def past_damage(start: int, until: int) -> RangePosition:
    wanted = FetchRange(TP, start, until)
    return RangePosition(wanted, is_read_committed=True, check_crcs=True, goes_past_damage=True)


def damage(resume_offset: int) -> PartitionResult:
    return answer(error=LogDamagedError("rotten", resume_offset=resume_offset))


def test_damage_is_gone_past_where_that_is_wanted() -> None:
    reader = past_damage(0, NO_END)
    assert ranges(reader, answer(batch(0, 10))) == [(0, 10)]
    assert ranges(reader, damage(20)) == []
    assert reader.gaps == [(10, 20, "rotten")]
    assert ranges(reader, answer(batch(20, 5))) == [(20, 25)]
    assert reader.gaps == []


def test_damage_is_gone_past_at_most_to_the_end_of_the_range() -> None:
    reader = past_damage(3, 12)
    assert ranges(reader, damage(20)) == []
    assert (reader.next_offset, reader.is_done) == (12, True)
    assert reader.gaps == [(3, 12, "rotten")]


def test_damage_ends_the_reading_unless_asked_and_says_what_can_be_asked() -> None:
    reader = position(3, 12)
    with pytest.raises(LogDamagedError, match=r"rotten; skip\.corrupt\.batches=true .*failOnDataLoss=false.* at offset 20") as told:
        reader.accept(*damage(20))
    assert told.value.resume_offset == 20
    assert reader.next_offset == 3


@pytest.mark.parametrize("resume_offset", [-(2**63), -1, 0, 9, 10])
@pytest.mark.parametrize("until", [NO_END, 30])
def test_nobody_goes_where_no_log_goes_on(resume_offset: int, until: int) -> None:
    reader = past_damage(10, until)
    with pytest.raises(LogDamagedError, match=r"^rotten$"):
        reader.accept(*damage(resume_offset))
    assert reader.next_offset == 10
    assert reader.gaps == []


def test_only_damage_is_gone_past() -> None:
    with pytest.raises(CorruptMessageError):
        past_damage(10, 30).accept(*answer(error=CorruptMessageError("bad", resume_offset=20)))
