"""Goal: `brokerd top` computes correct rates, shows that a broker is unreachable, and fits every terminal. Method: samples, a watch
with a manual clock, and screens for terminals of many sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from brokerd.cli import main
from brokerd.cli.top import Look, Screen, lines_of, look, rate, rate_text, screens, tables_of
from brokerd.client.blocking import BlockingClient
from brokerd.errors import BrokerUnreachableError, NotLeaderError
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1.metadata_pb2 import GetServerInfoResponse
from brokerd.wire.v1.offsets_pb2 import DescribeGroupResponse, GroupListing, GroupPartitionDescription, PartitionGroupOffset
from brokerd.wire.v1.topics_pb2 import PartitionDescription, TopicDescription
from brokerd.wire.v1.transaction_pb2 import TRANSACTION_STATE_OPEN, TransactionListing
from tests.support.clock import START_WALL_MS, ManualClock
from tests.support.fake_broker import unknown_partition

ID, OTHER_ID = bytes(range(16)), bytes(16)
TP = TopicIdPartition(ID, 0)


def topic(name: str, *ends: int, topic_id: bytes = ID, size: int = 100) -> TopicDescription:
    partitions = [
        PartitionDescription(
            partition=number,
            last_stable_offset=end - 1,
            high_watermark=end,
            log_end_offset=end,
            size_bytes=size,
            segment_count=1,
        )
        for number, end in enumerate(ends)
    ]
    return TopicDescription(name=name, topic_id=topic_id, partitions=partitions)


def group(group_id: str, offset: int, end: int, lag_ms: int = -1) -> DescribeGroupResponse:
    committed = PartitionGroupOffset(topic_id=ID, partition=0, offset=offset)
    lag_bytes = 10 * (end - offset) if end >= 0 else -1
    one = GroupPartitionDescription(committed=committed, topic="t", end_offset=end, lag_bytes=lag_bytes, lag_ms=lag_ms)
    return DescribeGroupResponse(group=GroupListing(group_id=group_id, principal="me", partitions=1), partitions=[one])


def look_at(clock: ManualClock, *topics: TopicDescription, groups: Sequence[DescribeGroupResponse] = ()) -> Look:
    open_one = TransactionListing(
        transactional_id="import",
        state=TRANSACTION_STATE_OPEN,
        last_version=3,
        txn_version=4,
        open_members=2,
        age_ms=90_000,
        owner="me",
    )
    return Look(clock.monotonic_ms(), "0.1.0", "c", topics, tuple(groups), len(groups), (open_one,) if groups else ())


def test_rates_are_of_what_both_looks_have() -> None:
    first, second = TopicIdPartition(ID, 0), TopicIdPartition(ID, 1)
    assert rate({first: 10}, {first: 30}, 4_000) == 5.0
    assert rate({first: 10}, {first: 30, second: 1_000}, 1_000) == 20.0, "a partition that is new was not read in this time"
    assert rate({}, {first: 30}, 1_000) is None
    assert rate({first: 10}, {first: 30}, 0) is None
    assert rate({first: 10}, {first: 9}, 1_000) is None, "a group that was reset has no rate"


def test_tables_have_what_matters_first() -> None:
    clock = ManualClock()
    before = look_at(clock, topic("slow", 10, topic_id=OTHER_ID), topic("fast", 10, 10), groups=[group("near", 9, 10)])
    clock.advance(2_000)
    now = look_at(
        clock,
        topic("slow", 11, topic_id=OTHER_ID),
        topic("fast", 30, 30),
        topic("new", 5, topic_id=bytes([7] * 16)),
        groups=[group("near", 19, 20, lag_ms=7), group("far", 0, 20), group("unknown", 5, -1)],
    )
    tables = tables_of(before, now)
    assert [(one["topic"], one["offsets_per_s"]) for one in tables["topics"]] == [("fast", 20.0), ("slow", 0.5), ("new", None)]
    assert [tables["topics"][0][name] for name in ("offsets", "size_bytes", "held_back")] == [60, 200, 2]
    assert [(one["group_id"], one["lag"], one["lag_bytes"], one["lag_ms"]) for one in tables["groups"]] == [
        ("far", 20, 200, None),
        ("near", 1, 10, 7),
        ("unknown", None, None, None),
    ]
    assert tables["groups"][1]["offsets_per_s"] == 5.0
    assert [(one["transactional_id"], one["age_ms"]) for one in tables["transactions"]] == [("import", 90_000)]


def test_what_no_leader_describes_is_no_sample() -> None:
    """A sample of zeros would count the partition's whole content as a rate once its leader responds again."""
    clock = ManualClock()
    whole, one_left = topic("t", 60_000, 10), topic("t", 60_000, 20)
    one_left.partitions[0].CopyFrom(unknown_partition(NotLeaderError("its leader, node 1, did not answer")))
    looks = [look_at(clock, whole)]
    for found in (one_left, whole):
        clock.advance(1_000)
        looks.append(look_at(clock, found))
    names = ("offsets", "size_bytes", "held_back", "offsets_per_s", "bytes_per_s", "unhealthy", "unknown")
    without, back = (tables_of(*two)["topics"][0] for two in itertools.pairwise(looks))
    assert [without[name] for name in names] == [20, 100, 1, 10.0, 0.0, 1, 1]
    assert [back[name] for name in names] == [60_010, 200, 2, None, 0.0, 0, 0]
    del one_left.partitions[1]
    (nothing,) = tables_of(looks[0], look_at(clock, one_left))["topics"]
    assert [nothing[name] for name in names] == [None, None, None, None, None, 1, 1]


def test_sums_without_what_is_unknown_are_marked() -> None:
    clock = ManualClock()
    found = topic("t", 100, 20)
    found.partitions[0].CopyFrom(unknown_partition(NotLeaderError("its leader, node 1, did not answer")))
    lagging = group("g", 5, 20, lag_ms=7_000)
    lagging.partitions.append(group("g", 5, -1).partitions[0])
    screen = {"time_ms": 0, "unreachable_since_ms": None} | tables_of(None, look_at(clock, found, groups=[lagging]))
    (shown,) = [line.split() for line in lines_of(screen, "h:9192") if line.startswith("t ")]
    assert shown == ["t", "20+", "-", "100", "B+", "2", "1", "1+", "-"]
    (shown,) = [line.split() for line in lines_of(screen, "h:9192") if line.startswith("g ")]
    assert shown == ["g", "15+", "7", "s+", "-", "150", "B+", "2"]


def test_a_topic_that_was_made_again_begins_again() -> None:
    clock = ManualClock()
    before = look_at(clock, topic("t", 1_000))
    clock.advance(1_000)
    again = tables_of(before, look_at(clock, topic("t", 5, topic_id=OTHER_ID)))["topics"][0]
    assert (again["offsets_per_s"], again["bytes_per_s"]) == (None, None)


def changed(before: PartitionDescription, **fields: int) -> PartitionDescription:
    after = PartitionDescription()
    after.CopyFrom(before)
    for name, value in fields.items():
        setattr(after, name, value)
    return after


def written_per_s(before: PartitionDescription, now: PartitionDescription) -> float | None:
    """bytes_per_s of a topic with one partition, from two samples two seconds apart."""
    clock = ManualClock()
    first = look_at(clock, TopicDescription(name="t", topic_id=ID, partitions=[before]))
    clock.advance(2_000)
    second = look_at(clock, TopicDescription(name="t", topic_id=ID, partitions=[now]))
    found: float | None = tables_of(first, second)["topics"][0]["bytes_per_s"]
    return found


def test_bytes_per_second_are_the_growth_of_logs_that_only_grew() -> None:
    (before,) = topic("t", 10, size=5_000).partitions
    assert written_per_s(before, before) == 0.0
    assert written_per_s(before, changed(before, size_bytes=8_000, segment_count=2)) == 1_500.0
    assert written_per_s(before, changed(before, size_bytes=4_999)) is None, "a log was cut"
    assert written_per_s(before, changed(before, size_bytes=8_000, log_start_offset=5)) is None, "retention may have removed some"
    assert written_per_s(changed(before, segment_count=3), changed(before, size_bytes=8_000)) is None, "a segment was deleted late"


def test_bytes_per_second_are_those_of_all_partitions_that_both_looks_have() -> None:
    clock = ManualClock()
    before = look_at(clock, topic("t", 10, 10, size=100))
    clock.advance(1_000)
    assert tables_of(before, look_at(clock, topic("t", 10, 10, 10, size=150)))["topics"][0]["bytes_per_s"] == 100.0
    assert tables_of(None, before)["topics"][0]["bytes_per_s"] is None


def test_a_broker_that_is_away_is_unreachable_since_its_first_failure() -> None:
    clock = ManualClock()
    answers: list[Callable[[], Look]] = []

    def fail() -> Look:
        clock.advance(3_000)
        raise BrokerUnreachableError("no broker responded at h:1 in 3.0 s")

    def take() -> Look:
        return answers.pop(0)()

    watch = screens(take, clock)
    answers[:] = [fail, lambda: look_at(clock, topic("t", 10)), fail, fail]
    first = next(watch)
    assert (first["time_ms"], first["unreachable_since_ms"]) == (START_WALL_MS + 3_000, START_WALL_MS)
    assert (first["problem"], first["version"], first["topics"]) == ("no broker responded at h:1 in 3.0 s", None, [])
    answering = next(watch)
    assert (answering["unreachable_since_ms"], answering["problem"]) == (None, None)
    clock.advance(1_000)
    failed_ms = clock.wall_ms()
    shown = [next(watch), next(watch)]
    assert [one["unreachable_since_ms"] for one in shown] == [failed_ms, failed_ms]
    assert shown[1]["topics"] == answering["topics"], "the last answer stays in sight"
    answers[:] = [lambda: look_at(clock, topic("t", 500)), lambda: look_at(clock, topic("t", 510))]
    back = next(watch)
    assert (back["unreachable_since_ms"], back["topics"][0]["offsets_per_s"]) == (None, None)
    clock.advance(1_000)
    assert next(watch)["topics"][0]["offsets_per_s"] == 10.0


def test_rates_leave_out_how_long_the_answers_took() -> None:
    clock = ManualClock()

    class Client:
        """Each look takes longer, as when a leader has died."""

        waits_ms, end = 0, 0

        def server_info(self) -> GetServerInfoResponse:
            return GetServerInfoResponse()

        def describe_topics(self) -> dict[str, TopicDescription]:
            self.end += 100
            clock.advance(self.waits_ms)
            return {"t": topic("t", self.end)}

        def list_groups(self) -> list[GroupListing]:
            clock.advance(self.waits_ms)
            self.waits_ms = 3_000
            return []

        def describe_groups(self, _group_ids: Sequence[str]) -> list[DescribeGroupResponse]:
            return []

        def list_transactions(self) -> list[TransactionListing]:
            return []

    client = cast("BlockingClient", Client())
    before = look(client, clock)
    clock.advance(1_000)
    assert tables_of(before, look(client, clock))["topics"][0]["offsets_per_s"] == 100.0


def full_screen() -> Screen:
    clock = ManualClock()
    names = ["a-topic-with-a-very-long-name-" + "x" * 100, "ключ", *(f"topic-{number}" for number in range(60))]
    topics = [topic(name, 10**12, topic_id=bytes([number] * 16)) for number, name in enumerate(names)]
    look = look_at(clock, *topics, groups=[group(f"group-{number}", 1, 10**12, lag_ms=10**10) for number in range(40)])
    away = {"unreachable_since_ms": clock.wall_ms(), "problem": "no broker responded at h:1 " + "y" * 100}
    return {"time_ms": clock.wall_ms(), **away, **tables_of(None, look)}


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 120, 300])
@pytest.mark.parametrize("height", [1, 5, 24, 60, 200])
def test_every_terminal_is_filled_and_not_more(width: int, height: int) -> None:
    lines = lines_of(full_screen(), "h:9192", width=width, height=height)
    assert len(lines) <= height
    seen = [line[:width] for line in lines]
    if width >= 40 and height > 1:
        assert "unreachable since 2023-11-14" in seen[1]
        assert any("OFFSETS/S" in line for line in seen) == (height > 12)
    if height >= 24:
        assert any(line.startswith("62 topics, ") for line in lines) == (height < 200)
    if width >= 120 and height >= 24:
        assert all(len(line) <= width for line in lines if not line.startswith("unreachable"))


def test_rates_are_readable() -> None:
    assert [rate_text(one) for one in (0.0, 0.5, 12.3, 1e6)] == ["0", "0.5", "12", "1000000"]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["top"], 2, "brokerd top: standard output is no terminal: give --once or --json (see 'brokerd top --help')\n"),
        (["top", "--interval-ms", "5", "--once"], 2, "--interval-ms must be between 100 and 3600000, not 5"),
        (["top", "--once", "-b", "127.0.0.1:1", "-X", "default.api.timeout.ms=100"], 1, "no broker responded at 127.0.0.1:1"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert sentence in err
