"""The producer's topic metadata is requested when needed and dropped when idle; recreated topics are recognised."""

from __future__ import annotations

import logging
import random
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import numpy as np
import pyarrow as pa
import pytest

from brokerd.config.client import ProducerConfig
from brokerd.config.settings import from_mapping
from brokerd.errors import (
    BrokerUnreachableError,
    ConfigError,
    Fate,
    ProducerClosedError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from brokerd.ids import NO_LEADER, TopicInfo, TopicPartition
from brokerd.producer.core.accumulator import NEVER_MS
from brokerd.producer.core.identity import Identity
from brokerd.producer.core.topics import TopicRegistry
from brokerd.producer.intake import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN
from brokerd.producer.producer import Producer
from tests.support.broker_double import BrokerDouble, Fault, TopicDouble, double_of
from tests.support.broker_model import PartitionModel
from tests.support.clock import ManualClock
from tests.support.wait import DEADLINE_S, wait_until
from tests.unit.producer.test_producer import producer_of

IDLE_MS = 10_000
VIEW = TopicInfo(b"1" * 16, (0, 0))
ABSENT = UnknownTopicOrPartitionError("no such topic")
REFUSED = TopicAuthorizationFailedError("not yours", fate=Fate.NOT_APPENDED)


@pytest.fixture
def topics() -> TopicRegistry:
    config = from_mapping(ProducerConfig, {"metadata.max.idle.ms": IDLE_MS})
    registry = TopicRegistry(config, random.Random(1))
    registry.want("busy", 0)
    registry.want("idle", 0)
    assert registry.begin(0) == ("busy", "idle")
    assert registry.on_result({"busy": VIEW, "idle": VIEW}, 0) == {}
    return registry


def test_an_idle_topic_is_not_asked_for_any_more(topics: TopicRegistry) -> None:
    assert topics.use("busy", IDLE_MS - 1) == VIEW
    topics.request_refresh()
    assert topics.due_ms(IDLE_MS, is_busy=True) < NEVER_MS
    assert topics.begin(IDLE_MS) == ("busy",)
    assert topics.leader_of(TopicPartition("idle", 0)) == NO_LEADER
    assert topics.on_result({"busy": VIEW, "idle": VIEW}, IDLE_MS) == {}
    assert topics.view("idle") is None


def test_an_idle_topic_is_asked_for_when_it_is_used_again(topics: TopicRegistry) -> None:
    assert topics.use("idle", IDLE_MS - 1) == VIEW
    assert topics.use("idle", 2 * IDLE_MS - 2) == VIEW
    assert topics.use("idle", 3 * IDLE_MS - 2) is None
    topics.want("idle", 3 * IDLE_MS)
    assert topics.due_ms(3 * IDLE_MS, is_busy=False) == 3 * IDLE_MS
    assert topics.begin(3 * IDLE_MS) == ("idle",)


def test_a_topic_created_anew_while_it_was_forgotten_is_another(topics: TopicRegistry) -> None:
    assert topics.use("idle", IDLE_MS) is None
    topics.want("idle", IDLE_MS)
    topics.begin(IDLE_MS)
    assert topics.on_result({"idle": TopicInfo(b"2" * 16, (0,))}, IDLE_MS) == {"idle": VIEW}


def test_nothing_in_use_asks_for_nothing(topics: TopicRegistry) -> None:
    topics.request_refresh()
    assert topics.begin(IDLE_MS) == ()
    assert topics.due_ms(IDLE_MS, is_busy=True) == NEVER_MS
    topics.want("busy", IDLE_MS)
    assert topics.begin(IDLE_MS) == ("busy",)


def test_a_new_topic_is_asked_for_at_once_and_alone(topics: TopicRegistry) -> None:
    for number in range(1_000):  # each requested right after the response to the previous one
        topics.want(f"new-{number}", 1)
        assert topics.due_ms(1, is_busy=False) == 1
        assert topics.begin(1) == (f"new-{number}",)
        topics.on_result({f"new-{number}": VIEW}, 1)
    assert topics.due_ms(1, is_busy=False) == NEVER_MS
    topics.request_refresh()
    due_ms = topics.due_ms(1, is_busy=True)
    assert 1 < due_ms < NEVER_MS, "what is known is asked for again at a distance"
    assert len(topics.begin(due_ms)) == 1_002


def test_a_new_topic_waits_its_turn_where_nobody_answers(topics: TopicRegistry) -> None:
    topics.want("new", 1)
    topics.begin(1)
    topics.on_failure(1)
    topics.want("newer", 2)
    due_ms = topics.due_ms(2, is_busy=False)
    assert 2 < due_ms < NEVER_MS
    assert topics.begin(due_ms) == ("busy", "idle", "new", "newer")


def test_what_an_answer_leaves_out_is_asked_for_again(topics: TopicRegistry) -> None:
    topics.want("new", 1)
    topics.begin(1)
    topics.on_result({"another": VIEW}, 1)
    assert (topics.error_of("new", 0), topics.view("another")) == (None, None)
    topics.want("new", 1)
    due_ms = topics.due_ms(1, is_busy=False)
    assert "new" in topics.begin(due_ms)


def test_who_had_no_time_for_the_answer_finds_it_the_next_time(topics: TopicRegistry) -> None:
    topics.want("slow", 1)
    assert topics.begin(1) == ("slow",)
    topics.on_result({"slow": VIEW}, 3)
    assert topics.use("slow", 4) == VIEW
    topics.want("not-there", 5)
    topics.begin(5)
    topics.on_result({"not-there": ABSENT}, 7)
    assert topics.due_ms(8, is_busy=False) == NEVER_MS, "nobody wants it any more, and it is not there"
    assert topics.use("not-there", 8) is None


def test_max_block_ms_below_an_answers_time_succeeds_in_the_end() -> None:
    broker = double_of(1)
    with Producer({"linger.ms": 0, "max.block.ms": 0}, transport_factory=broker.transport) as producer:

        def is_sent() -> bool:
            try:
                producer.send("t", b"v")
            except BrokerUnreachableError:
                return False
            return True

        wait_until(is_sent)


def test_a_producer_goes_on_with_a_topic_it_had_forgotten() -> None:
    broker = double_of(1)
    clock = ManualClock()
    settings = {"linger.ms": 0, "metadata.max.idle.ms": IDLE_MS}
    with Producer(settings, transport_factory=broker.transport, clock=clock) as producer:
        assert producer.send("t", b"0").result(DEADLINE_S).offset == 0
        clock.advance(IDLE_MS)
        assert producer.send("t", b"1").result(DEADLINE_S).offset == 1
        clock.advance(IDLE_MS)
        broker.create_topic("t", 1)
        assert producer.send("t", b"2").result(DEADLINE_S).offset == 0
    assert broker.values("t", 0) == [b"2"]


def test_a_topic_is_asked_for_until_nobody_wants_it(topics: TopicRegistry) -> None:
    topics.want("new", 0)
    topics.begin(0)
    topics.on_failure(0)
    topics.want("new", 10)
    assert "new" in topics.begin(20)
    topics.want("new", 20)  # by a call that began while the request was in flight
    topics.on_result({"new": ABSENT}, 20)
    due_ms = topics.due_ms(20, is_busy=False)
    assert 20 < due_ms < NEVER_MS
    assert "new" in topics.begin(due_ms)
    topics.on_result({"busy": VIEW, "idle": VIEW, "new": ABSENT}, due_ms)
    assert topics.due_ms(due_ms, is_busy=False) == NEVER_MS


def test_who_comes_after_an_answer_waits_for_the_next(topics: TopicRegistry) -> None:
    topics.want("new", 0)
    topics.begin(0)
    before = topics.answer_count
    topics.on_result({"new": REFUSED}, 0)
    after = topics.answer_count
    assert (topics.error_of("new", before), topics.error_of("new", after)) == (REFUSED, None)
    topics.want("new", 10)
    assert topics.due_ms(10, is_busy=False) < NEVER_MS
    topics.begin(10)
    topics.on_result({"new": VIEW}, 10)
    assert topics.view("new") == VIEW
    assert topics.error_of("new", before) is None, "it was found since"


def test_errors_of_topics_that_do_not_exist_are_not_kept_for_ever(topics: TopicRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.producer.core.topics._ERRORS_MAX", 2)
    topics.on_result({}, 0)
    for name in ("a", "b", "a", "c"):
        topics.want(name, 0)
        topics.on_result({name: ABSENT}, 0)
    assert [topics.error_of(name, 0) for name in ("a", "b", "c")] == [ABSENT, None, ABSENT]


def test_all_who_wait_for_a_topic_hear_why_it_is_refused() -> None:
    broker = BrokerDouble(metadata_errors=deque([BrokerUnreachableError("nobody there")] * 100_000))
    broker.topic_errors["t"] = REFUSED
    settings = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 2, "max.block.ms": 60_000}
    with Producer(settings, transport_factory=broker.transport) as producer, ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(producer.send, "t", b"v") for _ in range(3)]
        wait_until(lambda: len(producer._shared._waits) == len(calls))
        broker.metadata_errors = deque()
        for call in calls:
            assert isinstance(call.exception(DEADLINE_S), TopicAuthorizationFailedError)


def test_a_refused_topic_does_not_hide_that_an_earlier_attempt_may_have_written() -> None:
    broker = double_of(1)
    # The stream is not opened again before the answer to the metadata request, however long that takes.
    with producer_of(broker, reconnect_backoff_ms=60_000, reconnect_backoff_max_ms=60_000) as producer:
        producer.send("t", b"x").result(DEADLINE_S)
        broker.topic_errors["t"] = TopicAuthorizationFailedError("no right")
        broker.faults.append(Fault(kill_after=True))
        error = producer.send("t", b"y").exception(DEADLINE_S)
        assert isinstance(error, TopicAuthorizationFailedError)
        assert error.fate is Fate.UNKNOWN
    assert broker.values("t", 0) == [b"x", b"y"]


@pytest.mark.parametrize("is_reachable", [True, False])
def test_a_log_handler_may_use_the_producer_that_logs(*, is_reachable: bool) -> None:
    """Python holds a lock of the handler meanwhile. If the producer held its own, too, two threads that log could wait for ever."""
    broker = double_of(1, metadata_errors=deque([] if is_reachable else [BrokerUnreachableError("nobody there")] * 100_000))
    is_free: list[bool] = []

    class Sending(logging.Handler):
        def emit(self, _record: logging.LogRecord) -> None:
            other = Thread(target=producer.metrics, daemon=True)
            other.start()
            other.join(DEADLINE_S)
            is_free.append(not other.is_alive())

    handler, source = Sending(), logging.getLogger("brokerd.producer")
    source.addHandler(handler)
    try:
        with producer_of(broker) as producer, ThreadPoolExecutor(1) as pool:
            call = pool.submit(producer.send, "missing", b"v")
            wait_until(lambda: bool(is_free))
            producer.close(0)
            with pytest.raises(ProducerClosedError):
                call.result(DEADLINE_S)
    finally:
        source.removeHandler(handler)
    assert all(is_free)


def test_a_topic_that_is_created_while_it_is_waited_for_is_found() -> None:
    broker = BrokerDouble()
    settings = {"linger.ms": 0, "retry.backoff.ms": 1, "retry.backoff.max.ms": 2, "max.block.ms": 60_000}
    with Producer(settings, transport_factory=broker.transport) as producer, ThreadPoolExecutor(1) as pool:
        call = pool.submit(producer.send, "later", b"v")
        wait_until(lambda: isinstance(producer._core.last_trouble, UnknownTopicOrPartitionError))
        broker.create_topic("later", 1)
        assert call.result(DEADLINE_S).result(DEADLINE_S).offset == 0


def test_topics_are_not_forgotten_sooner_than_in_kafka() -> None:
    with pytest.raises(ConfigError, match=r"metadata\.max\.idle\.ms.*5000"):
        from_mapping(ProducerConfig, {"metadata.max.idle.ms": 4_999})


def test_who_needs_newer_knowledge_is_not_served_by_an_answer_on_its_way(topics: TopicRegistry) -> None:
    topics.request_refresh()
    due_ms = topics.due_ms(1, is_busy=True)
    topics.begin(due_ms)
    asked = topics.request_count
    topics.want("busy", due_ms, newer=True)
    topics.on_result({"busy": VIEW, "idle": VIEW}, due_ms)
    assert not topics.is_newer("busy", asked), "that response was on its way already"
    topics.want("busy", due_ms, newer=True)
    assert topics.due_ms(due_ms, is_busy=False) == due_ms
    assert topics.begin(due_ms) == ("busy",)
    topics.on_result({"busy": VIEW._replace(leaders=(0, 0, 0))}, due_ms)
    assert topics.is_newer("busy", asked)
    assert topics.due_ms(due_ms, is_busy=False) == NEVER_MS


def test_a_partition_that_is_new_is_found_by_asking() -> None:
    broker = BrokerDouble()
    topic = broker.create_topic("t", 1)
    settings = {"linger.ms": 0, "max.block.ms": 60_000}
    with Producer(settings, transport_factory=broker.transport) as producer:
        assert producer.send("t", b"0").result(DEADLINE_S).partition == 0
        grow(topic, 3)
        assert producer.send("t", b"2", partition=2).result(DEADLINE_S).partition == 2
        grow(topic, 5)
        batch = pa.RecordBatch.from_pydict({"value": [b"4"]})
        assert producer.send_batch("t", batch, partitions=np.array([4])).result(DEADLINE_S).record_counts == {4: 1}
        for partition in (5, 2**31):
            with pytest.raises(ValueError, match=f"partition {partition} does not exist: topic 't' has partitions 0 to 4"):
                producer.send("t", b"5", partition=partition)


def grow(topic: TopicDouble, partitions: int) -> None:
    topic.partitions += [PartitionModel() for _ in range(partitions - len(topic.partitions))]
    topic.leaders = [0] * partitions


def test_thousands_of_topics_wait_for_their_linger_side_by_side() -> None:
    broker = BrokerDouble()
    for number in range(1_000):
        broker.create_topic(f"t-{number}", 1)
    with Producer({"linger.ms": 600_000}, transport_factory=broker.transport) as producer:
        for value in (b"0", b"1"):
            for number in range(1_000):
                producer.send(f"t-{number}", value)
        assert len(producer._intake.chunks) == 1_000
        assert not broker.requests
    assert all(broker.values(f"t-{number}", 0) == [b"0", b"1"] for number in range(1_000))


def test_a_chunk_that_fills_pays_more() -> None:
    broker = double_of(1)
    with Producer({"linger.ms": 600_000}, transport_factory=broker.transport) as producer:
        sizes = []
        for number in range(1_000):
            producer.send("t", b"%08d" % number + b"x" * 992)
            sizes.append(producer._intake.chunks["t"].paid_bytes)
        assert sizes[0] == CHUNK_BYTES_MIN
        assert max(sizes) == CHUNK_BYTES_MAX
        assert sizes[-1] == CHUNK_BYTES_MAX, "the next one pays as much at once"
        producer.flush(DEADLINE_S)
        assert producer.metrics()["buffer-available-bytes"] == producer.metrics()["buffer-total-bytes"]
    assert [int(value[:8]) for value in broker.values("t", 0)] == list(range(1_000))


def test_what_a_call_waits_for_is_said_early(caplog: pytest.LogCaptureFixture) -> None:
    broker = BrokerDouble()
    settings = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 2, "max.block.ms": 60_000}
    with Producer(settings, transport_factory=broker.transport) as producer, ThreadPoolExecutor(1) as pool:
        call = pool.submit(producer.send, "missing", b"v")
        wait_until(lambda: "topic 'missing' does not exist: waiting for it" in caplog.text)
        broker.create_topic("missing", 1)
        call.result(DEADLINE_S)
        broker.create_topic("t", 1)
        broker.metadata_errors.extend([BrokerUnreachableError("nobody there")] * 100_000)
        call = pool.submit(producer.send, "t", b"v")
        wait_until(lambda: "no broker has described topic 't' (nobody there)" in caplog.text)
        broker.metadata_errors = deque()
        call.result(DEADLINE_S)
    assert caplog.text.count("does not exist") == 1


def test_a_node_that_missed_an_election_does_not_lead_back(topics: TopicRegistry) -> None:
    """This also holds after the topic was forgotten, since the sequences of its partitions were not."""
    tp, elected = TopicPartition("busy", 1), VIEW._replace(leaders=(0, 1), leader_epochs=(3, 5))
    topics.on_result({"busy": elected}, 0)
    stale = VIEW._replace(leaders=(0, 0), leader_epochs=(4, 4))
    topics.on_result({"busy": stale}, 0)
    assert (topics.leader_of(tp), topics.leader_epoch_of(tp)) == (1, 5)
    assert topics.leader_epoch_of(TopicPartition("busy", 0)) == 4, "each partition has epochs of its own"
    assert topics.use("busy", IDLE_MS) is None
    topics.want("busy", IDLE_MS)
    topics.on_result({"busy": stale}, IDLE_MS)
    assert (topics.leader_of(tp), topics.leader_epoch_of(tp)) == (1, 5)
    topics.on_result({"busy": TopicInfo(b"2" * 16, (0, 0), leader_epochs=(1, 1))}, IDLE_MS)
    assert (topics.leader_of(tp), topics.leader_epoch_of(tp)) == (0, 1), "a recreated topic is another"


def test_a_refusal_that_names_a_newer_leader_is_believed(topics: TopicRegistry) -> None:
    tp = TopicPartition("busy", 1)
    topics.on_result({"busy": VIEW._replace(leader_epochs=(3, 3))}, 0)
    topics.note_leader(tp, NO_LEADER, 4)
    assert (topics.leader_of(tp), topics.leader_epoch_of(tp)) == (NO_LEADER, 4)
    topics.on_result({"busy": VIEW._replace(leader_epochs=(3, 3))}, 0)
    assert topics.leader_of(tp) == NO_LEADER, "that node has not heard of the election"
    topics.note_leader(tp, 1, 5)
    topics.note_leader(tp, 0, 4)
    assert (topics.leader_of(tp), topics.leader_epoch_of(tp)) == (1, 5)


def test_a_refusal_of_a_partition_that_is_gone_changes_nothing(topics: TopicRegistry) -> None:
    """Happens after the restore of a backup older than the partition."""
    topics.on_result({"busy": VIEW._replace(leader_epochs=(3, 3))}, 0)
    before = topics.view("busy")
    topics.note_leader(TopicPartition("busy", 2), 1, 4)
    topics.forget_leader(TopicPartition("busy", 2))
    assert topics.view("busy") == before


def test_a_restored_copy_is_believed_once_its_leader_was_forgotten(topics: TopicRegistry) -> None:
    tp = TopicPartition("busy", 0)
    topics.on_result({"busy": VIEW._replace(leader_epochs=(5, 5))}, 0)
    topics.forget_leader(tp)
    assert topics.leader_of(tp) == NO_LEADER
    topics.on_result({"busy": VIEW._replace(leader_epochs=(2, 2))}, 0)
    assert (topics.leader_of(tp), topics.leader_epoch_of(tp)) == (0, 2)
    assert topics.leader_epoch_of(TopicPartition("busy", 1)) == 5


def test_a_batch_of_an_earlier_member_leaves_nothing_to_settle() -> None:
    assert Identity(ProducerConfig(), random.Random(1)).unknowable(TopicPartition("t", 0)) == []


def tell(producer: Producer, broker: BrokerDouble, topic: TopicDouble) -> None:
    """The next metadata response describes this topic; waits until the producer knows."""
    broker.topics["t"] = topic

    def is_known() -> bool:
        with producer._shared.lock:
            view = producer._core.topics.view("t")
            return view is not None and view.topic_id == topic.topic_id

    with producer._shared.lock:
        producer._core.topics.request_refresh()
        producer._wake()
    wait_until(is_known)


@pytest.mark.parametrize("is_old_written", [False, True])
def test_a_node_that_is_behind_makes_no_record_a_duplicate(is_old_written: bool) -> None:
    """It names the topic's old id once more. Sequences already used in the new topic must not be reused."""
    broker = BrokerDouble()
    old = broker.create_topic("t", 1)
    with producer_of(broker) as producer:
        producer.send("t", b"old").result(DEADLINE_S)
        new = broker.create_topic("t", 1)
        tell(producer, broker, new)
        for number in range(3):
            producer.send("t", b"%d" % number).result(DEADLINE_S)
        tell(producer, broker, old)
        if is_old_written:
            assert producer.send("t", b"old, too").result(DEADLINE_S).offset == 1
        tell(producer, broker, new)
        for number in range(3, 6):
            assert producer.send("t", b"%d" % number).result(DEADLINE_S).offset == number
    assert broker.values("t", 0) == [b"0", b"1", b"2", b"3", b"4", b"5"]
