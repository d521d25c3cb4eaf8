"""Goal: a test breaks its broker at a moment of its choice, and every appended record is still there once."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from brokerd import Producer
from brokerd.cli.topic_lookup import with_nearest_name
from brokerd.client.blocking import BlockingClient
from brokerd.clock import SystemClock
from brokerd.config.client import ClientConfig
from brokerd.errors import (
    BrokerdError,
    ConfigError,
    DeliveryTimeoutError,
    InvalidPartitionsError,
    InvalidRequestError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from brokerd.testing import Broker, BrokerFailedError, Topic, UnmetFaultError
from tests.integration.testing.processes import is_alive
from tests.support.clock import ManualClock
from tests.support.wait import DEADLINE_S, wait_until


def values(topic: Topic) -> list[bytes | None]:
    return [row.value for row in topic.rows()]


def test_kill_is_a_kill_and_what_was_acknowledged_stays() -> None:
    with Broker() as broker:
        topic, pid, servers = broker.create_topic("t"), broker.pid, broker.bootstrap_servers
        topic.append(["before"])
        broker.kill()
        assert not is_alive(pid)
        with pytest.raises(BrokerFailedError, match=r"the broker is not running: it was killed: start\(\) starts it again"):
            _ = broker.pid
        for call in (topic.rows, lambda: topic.append(["v"]), lambda: broker.create_topic("u"), lambda: broker.topic("t")):
            with pytest.raises(BrokerFailedError, match=r"the broker is not running: it was killed: start\(\) starts it again"):
                call()
        broker.start()
        assert broker.pid != pid
        assert broker.bootstrap_servers == servers
        topic.append(["after"])
        assert values(topic) == [b"before", b"after"]
        assert "was not closed cleanly" in broker.log


def test_a_port_stays_the_brokers_while_it_is_away() -> None:
    with Broker() as broker:
        broker.kill()
        host, _, port = broker.bootstrap_servers.rpartition(":")
        address = (host, int(port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)


def test_restart_is_a_clean_stop_and_a_start() -> None:
    with Broker() as broker:
        topic = broker.create_topic("t")
        topic.append(["before"])
        broker.restart()
        assert "was closed cleanly" in broker.log
        broker.kill()
        broker.restart()
        with pytest.raises(BrokerdError, match=r"the broker is running: start\(\) is for one that was killed"):
            broker.start()
        broker.pause()
        broker.restart()
        topic.append(["after"])
        assert values(topic) == [b"before", b"after"]


def test_pause_holds_everything_until_resume() -> None:
    with Broker() as broker:
        topic = broker.create_topic("t")
        broker.pause()
        with pytest.raises(BrokerdError, match=r"the broker is paused and takes no commands: resume\(\) it first"):
            broker.fail_disk()
        appending = threading.Thread(target=topic.append, args=(["v"],))
        appending.start()
        appending.join(0.05)
        assert appending.is_alive()
        broker.resume()
        appending.join()
        assert values(topic) == [b"v"]


def test_close_ends_a_paused_broker() -> None:
    with Broker() as broker:
        pid = broker.pid
        broker.pause()
    assert not is_alive(pid)


@pytest.mark.parametrize("nth", [1, 2])
def test_kill_around_an_append(nth: int) -> None:
    with Broker() as broker:
        topic, pid = broker.create_topic("t"), broker.pid
        before, after = broker.kill_before("Produce", nth=nth), broker.kill_after("Produce", nth=nth + 1)
        for number in range(2 + nth):
            topic.append([f"v{number}"])
        assert before.has_happened
        assert after.has_happened
        assert broker.pid != pid
        assert values(topic) == [f"v{number}".encode() for number in range(2 + nth)]


def test_lost_responses_of_streams_and_calls() -> None:
    with Broker() as broker:
        topic, pid = broker.create_topic("t"), broker.pid
        # The second request of each kind is a retry, since the client got no response to the first.
        requests = ("Produce", "ListOffsets", "Fetch")
        faults = [broker.lose_response(request, nth=nth) for request in requests for nth in (1, 2)]
        topic.append(["v"])
        assert [fault.has_happened for fault in faults] == [True, True, False, False, False, False]
        assert values(topic) == [b"v"]
        assert all(fault.has_happened for fault in faults)
        assert broker.pid == pid


@pytest.mark.parametrize("fault", ["kill_after", "lose_response"])
def test_a_created_topic_whose_response_was_lost_is_there(fault: str) -> None:
    with Broker() as broker:
        getattr(broker, fault)("CreateTopics")
        with pytest.raises(TopicAlreadyExistsError, match="so this call may have created it"):
            broker.create_topic("t")
        assert broker.topic("t").rows() == []


def test_a_change_whose_response_was_lost_is_done_or_the_error_says_so() -> None:
    with Broker() as broker, BlockingClient(ClientConfig(bootstrap_servers=broker.bootstrap_servers)) as client:
        topic = broker.create_topic("t")
        broker.lose_response("CreatePartitions")
        client.create_partitions("t", 3)
        with pytest.raises(InvalidPartitionsError):
            client.create_partitions("t", 3)
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="id") as producer, producer.transaction():
            producer.send("t", b"v")
        assert values(topic) == [b"v"]
        broker.lose_response("ForgetTransactionalId")
        with pytest.raises(InvalidRequestError, match=r"no transactional id 'id'.* so this call may have forgotten it"):
            client.forget_transactional_id("id")
        broker.lose_response("DeleteTopics")
        deleted = client.delete_topics(["t"])["t"]
        assert isinstance(deleted, UnknownTopicOrPartitionError)
        assert str(deleted).endswith("was lost, so this call may have deleted it")
        known = str(with_nearest_name(client, "t", deleted))
        assert known.startswith(f"{deleted}: ")
        assert "earlier attempt" not in str(client.delete_topics(["t"])["t"])


def test_a_fault_that_met_nothing_fails_the_test() -> None:
    broker = Broker()
    broker.start()
    topic = broker.create_topic("t")
    met, unmet = broker.kill_before("Produce"), broker.kill_after("EndTransaction")
    topic.append(["v"])
    assert met.has_happened
    assert not unmet.has_happened
    with pytest.raises(
        UnmetFaultError, match="no request came for a fault that the test has ordered: the broker is killed after the next EndT"
    ):
        broker.close()


def with_error_and_unmet_fault() -> None:
    with Broker() as broker:
        broker.kill_after("EndTransaction")
        _ = 1 / 0


def test_the_error_in_the_block_comes_before_a_fault_that_met_nothing() -> None:
    with pytest.raises(ZeroDivisionError):
        with_error_and_unmet_fault()


def test_an_unknown_fault_is_refused_with_the_nearest() -> None:
    with Broker() as broker:
        with pytest.raises(ConfigError, match="unknown request 'produce': did you mean 'Produce'"):
            broker.kill_after("produce")
        with pytest.raises(ConfigError, match="nth must be a number between 1 and 1000000000, not 0"):
            broker.lose_response("Produce", nth=0)
        with pytest.raises(ConfigError, match="a disk fails as one of full, write, sync, read, not 'slow'"):
            broker.fail_disk("slow")
        with pytest.raises(ConfigError, match="how must say how the disk fails"):
            broker.fail_disk("")


@pytest.mark.parametrize("how", ["full", "write", "sync"])
def test_a_disk_that_fails_and_is_well_again(how: str) -> None:
    with Broker() as broker:
        topic = broker.create_topic("t")
        topic.append(["before"])
        broker.fail_disk(how)
        appending = threading.Thread(target=topic.append, args=(["meanwhile"],))
        appending.start()
        appending.join(0.2)
        assert appending.is_alive(), "a producer retries"
        broker.heal_disk()
        if how != "full":
            broker.restart()
        appending.join()
        assert values(topic) == [b"before", b"meanwhile"]


@pytest.mark.parametrize("how", ["full", "write", "sync"])
def test_a_disk_that_fails_before_the_first_transaction_is_named_once_patience_is_over(how: str) -> None:
    """The first transaction creates the coordinator's log."""
    clock = ManualClock(wall_ms=SystemClock().wall_ms())
    with Broker() as broker:
        topic = broker.create_topic("t")
        settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "job"}
        broker.fail_disk(how)
        with Producer(settings, clock=clock) as producer:

            def is_in_trouble() -> bool:
                clock.advance(1)
                producer.metrics()  # makes it check the clock
                return "__coordinator" in str(producer._core.last_trouble)

            def send_until_patience_is_over() -> None:
                with producer.transaction():
                    future = producer.send("t", b"v")
                    wait_until(is_in_trouble)
                    clock.advance(producer.config.delivery_timeout_ms)
                    producer.metrics()
                    future.result(DEADLINE_S)

            with pytest.raises(DeliveryTimeoutError, match=r"not in the log; last trouble: .*__coordinator"):
                send_until_patience_is_over()
        broker.heal_disk()
        with Producer(settings) as producer, producer.transaction():
            producer.send("t", b"w")
        assert values(topic) == [b"w"]


def test_a_disk_that_cannot_be_read_at_a_start() -> None:
    with Broker() as broker:
        directory = broker.directory
        topic = broker.create_topic("t")
        topic.append(["before"])
        broker.kill()
        broker.fail_disk("read")
        with pytest.raises(BrokerFailedError, match="the broker did not start") as caught:
            broker.start()
        _, _, words = str(caught.value).partition(f"its directory, which is kept, is {directory}, and its log ends with:\n")
        assert words
        assert broker.log.endswith(words)
        assert directory.exists()
        broker.heal_disk()
        broker.start()
        assert values(topic) == [b"before"]
    assert not directory.exists(), "it is kept for a failure, and that has passed"


@pytest.mark.parametrize("given", [None, 5, ["Produce"]])
def test_a_fault_of_the_wrong_type_is_refused_and_harms_nothing(given: Any) -> None:
    with Broker() as broker:
        for arm in (broker.kill_before, broker.kill_after, broker.lose_response, broker.fail_disk):
            with pytest.raises(ConfigError, match="give it as a str"):
                arm(given)
        broker.create_topic("still-there").append(["row"])
