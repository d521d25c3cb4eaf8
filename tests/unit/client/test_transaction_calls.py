"""Transaction calls: pages, retries and values, and invalid responses of a faulty broker."""

from __future__ import annotations

import grpc
import pytest

from brokerd.client.blocking import BlockingClient
from brokerd.client.transactions import end_requests
from brokerd.config.client import ClientConfig
from brokerd.errors import (
    AlreadyCommittedError,
    AuthenticationError,
    BrokerdError,
    BrokerUnreachableError,
    ConfigError,
    CoordinatorLoadInProgressError,
    GroupAuthorizationFailedError,
    InvalidRequestError,
    InvalidTxnStateError,
    NotReadyError,
    ReplayMismatchError,
    StorageError,
    TxnAbortedError,
    UnknownServerError,
    WireError,
)
from brokerd.ids import TopicIdPartition
from brokerd.producer.core.membership import GroupOffset, GroupOffsets, MemberReport, Membership, Totals, TransactionEnd
from brokerd.wire.errors import to_proto
from brokerd.wire.methods import UNARY_REQUEST_MAX_BYTES
from brokerd.wire.v1 import transaction_pb2 as pb
from tests.support.clock import HastyClock, ManualClock
from tests.support.fake_broker import FakeBroker


def member(number: int = 0, version: int = 3, name: str = "id") -> Membership:
    return Membership(name, version, "execution", "run", "owner", number.to_bytes(16), 60_000)


def end_of(members: list[MemberReport], *, is_commit: bool = True, totals: Totals = Totals()) -> TransactionEnd:  # noqa: B008
    partitions = [TopicIdPartition(bytes(16), number) for number in range(5)]
    return TransactionEnd("id", 3, "execution", "run", is_commit, members, partitions, totals)


def test_a_member_gets_the_same_id_every_time(broker: FakeBroker, client: BlockingClient) -> None:
    granted = client.init_member(member())
    assert client.init_member(member()) == granted
    assert granted.epoch == 0
    client.heartbeat(member())
    client.end_transaction(end_of([MemberReport(granted.producer_id, 0, 10)]))
    assert client.init_member(member(1, version=4)) != granted
    with pytest.raises(InvalidTxnStateError):
        client.heartbeat(member())


def test_a_decision_in_pages_says_all_of_it_once(broker: FakeBroker, client: BlockingClient) -> None:
    broker.limits["max.partitions.per.request"] = 4
    members = [MemberReport(client.init_member(member(number)).producer_id, 0, number) for number in range(10)]
    end = end_of(members, totals=Totals(1, 2, 3, 2**64 - 1))
    client.end_transaction(end)
    assert [page.page for page in broker.pages] == [0, 1, 2, 3]
    assert [page.more_pages for page in broker.pages] == [True, True, True, False]
    (decided,) = broker.ends
    assert (decided.members, decided.partitions, decided.totals) == (end.members, end.partitions, end.totals)


def test_a_decision_that_fails_between_pages_begins_again(broker: FakeBroker, client: BlockingClient) -> None:
    broker.limits["max.partitions.per.request"] = 3
    members = [MemberReport(client.init_member(member(number)).producer_id, 0, 1) for number in range(2)]
    client.server_info()
    broker.errors["EndTransaction"] = [NotReadyError("not ready", retry_after_ms=1)]
    broker.fail_calls = []
    client.end_transaction(end_of(members))
    assert [page.page for page in broker.pages] == [0, 0, 1, 2]
    broker._joined.clear()
    broker.pages.clear()
    client.end_transaction(end_of(members))
    assert len(broker.ends) == 2, "the same question gets the same response"


@pytest.mark.parametrize("error", [NotReadyError("starting"), StorageError("disk")])
def test_a_decision_is_asked_about_again_while_that_may_help(broker: FakeBroker, client: BlockingClient, error: WireError) -> None:
    granted = client.init_member(member())
    broker.errors["EndTransaction"] = [error] * 3
    client.end_transaction(end_of([MemberReport(granted.producer_id, 0, 1)]))
    assert broker.calls["EndTransaction"] == 4


def test_a_lost_response_is_asked_for_again(broker: FakeBroker, client: BlockingClient) -> None:
    granted = client.init_member(member())
    broker.fail_calls = [grpc.StatusCode.UNAVAILABLE] * 2
    client.end_transaction(end_of([MemberReport(granted.producer_id, 0, 1)]))


def test_a_final_answer_is_not_asked_for_again(broker: FakeBroker, client: BlockingClient) -> None:
    with pytest.raises(TxnAbortedError):
        client.end_transaction(end_of([MemberReport(7, 0, 1)]))
    granted = client.init_member(member())
    client.end_transaction(end_of([MemberReport(granted.producer_id, 0, 1)], totals=Totals(1)))
    with pytest.raises(ReplayMismatchError):
        client.end_transaction(end_of([], totals=Totals(2)))
    with pytest.raises(AlreadyCommittedError):
        client.end_transaction(end_of([], is_commit=False))
    assert broker.calls["EndTransaction"] == 4


@pytest.mark.parametrize("refusal", [GroupAuthorizationFailedError("not yours"), grpc.StatusCode.PERMISSION_DENIED])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_refusal_does_not_say_how_a_commit_without_an_answer_has_ended(
    broker: FakeBroker, client: BlockingClient, refusal: WireError | grpc.StatusCode, is_lost: bool
) -> None:
    end = end_of([MemberReport(client.init_member(member()).producer_id, 0, 1)])
    lost = [grpc.StatusCode.UNAVAILABLE] if is_lost else []
    if isinstance(refusal, WireError):
        broker.fail_calls, broker.errors["EndTransaction"] = lost, [refusal] * 2
    else:
        broker.fail_calls = [*lost, refusal]
    refused = (GroupAuthorizationFailedError, AuthenticationError)
    expected = "version 3 of transactional id 'id' may be committed.*: .*(not yours|told to fail)"
    with pytest.raises(BrokerUnreachableError, match=expected) if is_lost else pytest.raises(refused):
        client.end_transaction(end)
    broker.fail_calls, broker.errors["EndTransaction"] = [*lost, grpc.StatusCode.PERMISSION_DENIED], []
    with pytest.raises(AuthenticationError):
        client.end_transaction(end._replace(is_commit=False))


def test_a_token_that_is_refused_again_and_again_says_that_nothing_was_committed(
    broker: FakeBroker, client: BlockingClient
) -> None:
    end = end_of([MemberReport(client.init_member(member()).producer_id, 0, 1)])
    broker.fail_calls = [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED]
    with pytest.raises(AuthenticationError):
        client.end_transaction(end)


@pytest.mark.parametrize("is_one_write", [True, False])
def test_a_failure_inside_the_broker_leaves_the_outcome_open(
    broker: FakeBroker, client: BlockingClient, is_one_write: bool
) -> None:
    broker.errors["EndTransaction"] = [UnknownServerError("internal error 7")]
    with pytest.raises(BrokerUnreachableError, match=r"may be committed.*: internal error 7") as caught:
        client.end_transaction(end_of([])._replace(is_one_write=is_one_write))
    assert ("look for its rows in the topic before you write them again" in str(caught.value)) is is_one_write


def test_a_decision_is_given_up_after_its_time(broker: FakeBroker) -> None:
    config = ClientConfig(bootstrap_servers=f"127.0.0.1:{broker.port}", retry_backoff_ms=1, retry_backoff_max_ms=2)
    with BlockingClient(config, HastyClock()) as client:
        broker.errors["EndTransaction"] = [StorageError("disk")] * 100
        with pytest.raises(StorageError, match=r"tried \d times in [56]\d\.0 s"):
            client.end_transaction(end_of([]), timeout_ms=60_000)
        broker.fail_calls = [grpc.StatusCode.UNAVAILABLE] * 100
        with pytest.raises(BrokerUnreachableError, match=r"in [56]\d\.0 s"):
            client.end_transaction(end_of([]), timeout_ms=60_000)


@pytest.mark.parametrize("error", [StorageError("committed"), CoordinatorLoadInProgressError("loading")])
@pytest.mark.parametrize("is_one_write", [True, False])
def test_a_batch_write_is_told_that_a_commit_given_up_may_be_done(broker: FakeBroker, error: WireError, is_one_write: bool) -> None:
    """A batch write that runs again is another write, whereas a repeated version learns the outcome of the first attempt."""
    config = ClientConfig(bootstrap_servers=f"127.0.0.1:{broker.port}", retry_backoff_ms=1, retry_backoff_max_ms=2)
    with BlockingClient(config, HastyClock()) as client:
        broker.errors["EndTransaction"] = [error] * 100
        with pytest.raises(BrokerdError) as caught:
            client.end_transaction(end_of([])._replace(is_one_write=is_one_write), timeout_ms=60_000)
    is_told = is_one_write and isinstance(error, StorageError)
    assert isinstance(caught.value, BrokerUnreachableError if is_told else type(error))
    assert ("look for its rows" in str(caught.value)) == is_told


def test_a_coordinator_that_was_being_loaded_has_committed_nothing(broker: FakeBroker, client: BlockingClient) -> None:
    refused = InvalidRequestError("no commit")
    broker.errors["EndTransaction"] = [CoordinatorLoadInProgressError("loading", retry_after_ms=1), refused]
    with pytest.raises(InvalidRequestError, match="no commit"):
        client.end_transaction(end_of([]))


@pytest.mark.parametrize("is_one_write", [True, False])
@pytest.mark.parametrize("minutes", [59, 60])
def test_a_machine_that_slept_is_not_told_that_nothing_was_committed(broker: FakeBroker, minutes: int, is_one_write: bool) -> None:
    class SleepyClock(ManualClock):
        """The machine is suspended after each reading of this clock."""

        def boot_ms(self) -> int:
            now_ms = super().boot_ms()
            self.sleep(minutes * 60_000)
            return now_ms

    may_be_committed = minutes >= 60 and is_one_write
    expected = pytest.raises(BrokerUnreachableError, match="60 minutes ago") if may_be_committed else pytest.raises(TxnAbortedError)
    with BlockingClient(ClientConfig(bootstrap_servers=f"127.0.0.1:{broker.port}"), SleepyClock()) as client, expected:
        client.end_transaction(end_of([MemberReport(7, 0, 1)])._replace(is_one_write=is_one_write))


def test_pages_fit_into_a_request() -> None:
    members = [MemberReport(2**62 + number, 0, 2**40) for number in range(10_000)]
    partitions = [TopicIdPartition(bytes(16), number) for number in range(100)]
    end = TransactionEnd("\U0010ffff" * 249, 2**62, "\U0010ffff" * 249, "\U0010ffff" * 249, True, members, partitions)
    for bytes_max in (UNARY_REQUEST_MAX_BYTES, 100_000, 5_000):
        pages = list(end_requests(end, request_bytes_max=bytes_max, entries_max=10**9))
        assert max(page.ByteSize() for page in pages) <= bytes_max
        assert sum(len(page.members) for page in pages) == len(members)
        assert sum(len(page.partitions) for page in pages) == len(partitions)
    (page,) = end_requests(end._replace(members=[], partitions=[]), request_bytes_max=5_000, entries_max=1)
    assert not page.more_pages


def test_offsets_of_a_group_stand_in_the_last_page_and_have_a_limit() -> None:
    offsets = {TopicIdPartition(bytes(16), number): GroupOffset(2**62, "m" * 100, 1, -1) for number in range(20)}
    members = [MemberReport(number, 0, 1) for number in range(300)]
    end = end_of(members)._replace(group_offsets=GroupOffsets("g", offsets))
    *pages, last = end_requests(end, request_bytes_max=5_000, entries_max=100)
    assert max(page.ByteSize() for page in (*pages, last)) <= 5_000
    assert len(pages) >= 2
    assert not any(page.group_offsets or page.group_id for page in pages)
    assert (last.group_id, len(last.group_offsets), last.group_offsets[3].expected_offset) == ("g", 20, -1)
    for bytes_max, entries_max in ((5_000, 19), (2_000, 100)):
        with pytest.raises(InvalidRequestError, match=r"20 offsets of group 'g'.*commit fewer of them"):
            list(end_requests(end, request_bytes_max=bytes_max, entries_max=entries_max))


def test_transactional_ids_are_listed_over_pages_and_found_by_name(broker: FakeBroker, client: BlockingClient) -> None:
    for name in ("a", "a-1", "a-2", "b", "b-1"):
        client.init_member(member(name=name))
    assert [one.transactional_id for one in client.list_transactions()] == ["a", "a-1", "a-2", "b", "b-1"]
    assert [one.transactional_id for one in client.list_transactions(prefix="a-")] == ["a-1", "a-2"]
    assert client.list_transactions(state="empty") == []
    assert client.list_transactions(state="open", prefix="b")[0].state == pb.TRANSACTION_STATE_OPEN
    with pytest.raises(ConfigError, match="empty, open, prepared"):
        client.list_transactions(state="hanging")
    found = client.find_transaction("a")
    assert found is not None
    assert (found.transactional_id, found.open_members, found.txn_version, found.owner) == ("a", 1, 3, "owner")
    assert client.find_transaction("a-") is None
    assert client.find_transaction("c") is None


def test_a_page_that_comes_after_itself_is_no_answer(
    broker: FakeBroker, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = pb.ListTransactionsResponse(transactions=[pb.TransactionListing(transactional_id="a")], more=True)
    asked: list[str] = []

    def answer(request: pb.ListTransactionsRequest) -> pb.ListTransactionsResponse:
        asked.append(request.after)
        assert len(asked) <= 2, "it asks for the same page for ever"
        return page

    monkeypatch.setattr(broker, "_ListTransactions", answer)
    with pytest.raises(UnknownServerError, match="ListTransactions is invalid: a page that comes after itself"):
        client.list_transactions()
    assert asked == ["", "a"]


def test_an_abort_whose_response_was_lost_is_done(
    broker: FakeBroker, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id that never committed goes with its last member, so the broker does not know it any more."""
    gone = pb.AbortTransactionResponse(error=to_proto(InvalidRequestError("there is no transactional id 'id'")))
    monkeypatch.setattr(broker, "_AbortTransaction", lambda _asked: gone)
    client.server_info()
    broker.fail_calls = [grpc.StatusCode.UNAVAILABLE]
    assert client.abort_transaction("id") == 0
    with pytest.raises(InvalidRequestError, match="there is no transactional id"):
        client.abort_transaction("id")


def test_a_transactional_id_is_described_and_aborted(broker: FakeBroker, client: BlockingClient) -> None:
    granted = client.init_member(member())
    description = client.describe_transaction("id")
    (open_member,) = description.members
    assert (open_member.producer_id, open_member.member_id, open_member.run_id) == (granted.producer_id, bytes(16), "run")
    assert (open_member.partitions[0].topic_id, open_member.partitions[0].partition) == (bytes(16), 3)
    assert client.abort_transaction("id", "another") == 0
    assert client.abort_transaction("id") == 1
    assert client.describe_transaction("id").members == []
    broker.hanging = [pb.HangingTransaction(producer_id=number, idle_ms=number) for number in range(3)]
    hanging = client.find_hanging_transactions(1)
    assert ([one.producer_id for one in hanging.transactions], hanging.more) == ([1, 2], False)
    broker.has_more_hanging = True
    assert client.find_hanging_transactions(1).more


def test_texts_of_a_hostile_broker_are_made_plain(broker: FakeBroker, client: BlockingClient) -> None:
    client.init_member(member()._replace(owner="\x1b[2Jx"))
    assert client.describe_transaction("id").listing.owner == "\\x1b[2Jx"


def test_a_member_with_an_epoch_is_no_answer(broker: FakeBroker, client: BlockingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for granted in (pb.InitProducerIdResponse(producer_id=5, producer_epoch=1), pb.InitProducerIdResponse(producer_id=-1)):
        monkeypatch.setattr(broker, "init_member", lambda _request, granted=granted: granted)
        with pytest.raises(UnknownServerError, match="InitProducerId"):
            client.init_member(member())
