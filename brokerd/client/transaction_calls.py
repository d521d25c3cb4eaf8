"""The calls of transactions. Values are in transactions.py; connections and retries are BrokerClient's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from brokerd.client import transactions
from brokerd.client.io.response_checks import error_in, page_after
from brokerd.client.transactions import (
    NO_VERSION,
    ForgottenId,
    HangingTransactions,
    MemberGrant,
    TransactionDescription,
    TransactionListing,
)
from brokerd.errors import (
    BrokerdError,
    BrokerUnreachableError,
    Fate,
    ProducerFencedError,
    TxnAbortedError,
    UnsupportedVersionError,
)
from brokerd.producer.core.membership import ONE_WRITE_KEPT_MS, Membership, TransactionEnd
from brokerd.wire.methods import UNARY_REQUEST_MAX_BYTES
from brokerd.wire.v1 import transaction_pb2

if TYPE_CHECKING:
    from brokerd.client.broker_client import BrokerClient

ANY_NODE = -1


class TransactionCalls:
    """Of one BrokerClient; retried as its other calls are."""

    def __init__(self, client: BrokerClient) -> None:
        self._client = client

    async def init_member(self, membership: Membership) -> MemberGrant:
        """The producer id of a member of a transaction: the same one every time. Raises the broker's error."""
        request = transactions.init_request(membership)
        response = await self._client.call("InitProducerId", request, transaction_pb2.InitProducerIdResponse, error_of=error_in)
        return transactions.read_grant(response)

    async def heartbeat(self, membership: Membership) -> None:
        """Tells the broker that a member lives. Raises InvalidTxnStateError if it is not open."""
        request = transactions.heartbeat_request(membership)
        await self._client.call("Heartbeat", request, transaction_pb2.HeartbeatResponse, error_of=error_in)

    async def end(self, end: TransactionEnd, *, timeout_ms: int | None = None) -> int:
        """Commits or aborts members of a transaction; returns the last committed version of its transactional id. Asked again
        until `timeout_ms` (default.api.timeout.ms), which is safe: the same question gets the same response.

        Raises TxnAbortedError (a member was not open any more: nothing was committed), ReplayMismatchError, ProducerFencedError,
        TxnConflictError, AlreadyCommittedError (an abort came too late), UnsupportedVersionError for a broker that knows no offsets
        in transactions. After BrokerUnreachableError or a retriable error the outcome is unknown, and so it is after
        ProducerFencedError if its fate is not NOT_APPENDED: an attempt without a response may have committed what the broker does
        not remember any more.
        """
        asked_ms = self._client.clock.boot_ms()
        lost: list[BrokerdError] = []  # attempts that may have been carried out

        async def attempt(attempt_timeout_ms: int) -> int:
            entries_max = await self._client.partitions_per_request()
            if end.group_offsets is not None and not await self._client.has_feature(transactions.TRANSACTION_OFFSETS):
                raise _without_offsets()  # it would pass over them, and commit the records alone
            pages = transactions.end_requests(end, request_bytes_max=UNARY_REQUEST_MAX_BYTES, entries_max=entries_max)
            last_version = NO_VERSION
            for request in pages:  # from the first page on each time: the broker may have been restarted
                response_type = transaction_pb2.EndTransactionResponse
                response = await self._client.call_once(ANY_NODE, "EndTransaction", request, response_type, attempt_timeout_ms)
                error = error_in(response)
                if error is not None:
                    raise error
                last_version = response.last_version
            return last_version

        try:
            return await self._client.retried(attempt, failures=lost, timeout_ms=timeout_ms)
        except ProducerFencedError as error:
            if not lost:
                error.fate = Fate.NOT_APPENDED
            raise
        except TxnAbortedError as error:
            asked_for_ms = self._client.clock.boot_ms() - asked_ms
            if end.is_one_write and asked_for_ms >= ONE_WRITE_KEPT_MS:
                raise _forgotten(end, asked_for_ms) from error
            raise

    async def listed(self, state: str = "", prefix: str = "") -> list[TransactionListing]:
        """Transactional ids that begin with `prefix`, in the order of their names; only those in one state (empty, open, prepared)
        if it is given. Raises ConfigError for another state."""
        listings: list[TransactionListing] = []
        after = ""
        while True:
            page, more = await self._page(state, prefix, after)
            listings += page
            if not more or not page:
                return listings
            after = page_after("ListTransactions", after, page[-1].transactional_id)

    async def find(self, transactional_id: str, *, timeout_ms: int | None = None) -> TransactionListing | None:
        """One transactional id, or None if there is none that this client may see. Asked for until `timeout_ms`
        (default.api.timeout.ms)."""
        page, _ = await self._page("", transactional_id, "", timeout_ms)  # in the order of names: it is the first that begins so
        return page[0] if page and page[0].transactional_id == transactional_id else None

    async def _page(
        self, state: str, prefix: str, after: str, timeout_ms: int | None = None
    ) -> tuple[Sequence[TransactionListing], bool]:
        number = transactions.state_number(state)
        request = transaction_pb2.ListTransactionsRequest(state=number, prefix=prefix, after=after)
        response = await self._client.call(
            "ListTransactions", request, transaction_pb2.ListTransactionsResponse, error_of=error_in, timeout_ms=timeout_ms
        )
        return [transactions.read_listing(listing) for listing in response.transactions], response.more

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """Everything about one transactional id. Raises the broker's error."""
        request = transaction_pb2.DescribeTransactionRequest(transactional_id=transactional_id)
        response = await self._client.call(
            "DescribeTransaction", request, transaction_pb2.DescribeTransactionResponse, error_of=error_in
        )
        return transactions.read_description(response)

    async def abort(self, transactional_id: str, execution_id: str = "") -> int:
        """Aborts the open members of one execution, or all of a transactional id; returns how many."""
        request = transaction_pb2.AbortTransactionRequest(transactional_id=transactional_id, execution_id=execution_id)
        response = await self._client.call("AbortTransaction", request, transaction_pb2.AbortTransactionResponse, error_of=error_in)
        return response.aborted_members

    async def forget(self, transactional_id: str) -> ForgottenId:
        """Has an id forgotten, with its last committed version. Raises the broker's error."""
        request = transaction_pb2.ForgetTransactionalIdRequest(transactional_id=transactional_id)
        response = await self._client.call(
            "ForgetTransactionalId", request, transaction_pb2.ForgetTransactionalIdResponse, error_of=error_in
        )
        return transactions.read_forgotten(response)

    async def find_hanging(self, idle_ms: int) -> HangingTransactions:
        """Transactions that hold back partitions and have been silent for so long."""
        request = transaction_pb2.FindHangingTransactionsRequest(idle_ms=idle_ms)
        response = await self._client.call(
            "FindHangingTransactions", request, transaction_pb2.FindHangingTransactionsResponse, error_of=error_in
        )
        found = [transactions.read_hanging(hanging) for hanging in response.transactions]
        return HangingTransactions(found, response.more)


def _forgotten(end: TransactionEnd, asked_for_ms: int) -> BrokerUnreachableError:
    """The error for a commit that the broker may have made and forgotten. No deadline prevents that: they stand still with the
    machine."""
    return BrokerUnreachableError(
        f"transactional id {end.transactional_id!r}: its commit was first asked for {asked_for_ms // 60_000} minutes ago (this "
        f"machine slept meanwhile), and brokers forget ids of one write {ONE_WRITE_KEPT_MS // 60_000} minutes after their commit. "
        "Whether the rows are committed is not known: look for them in the topic before you write them again"
    )


def _without_offsets() -> UnsupportedVersionError:
    return UnsupportedVersionError(
        f"this broker cannot commit offsets of a group with a transaction (it has no feature {transactions.TRANSACTION_OFFSETS}): "
        "nothing of it is committed; upgrade the broker"
    )
