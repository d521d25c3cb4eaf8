"""Collects the pages of a decision too large for one request.

Pages are sent in order from page 0; a page after a gap is refused, and its sender starts over. Pages are kept for a limited time,
and a principal's newer decision evicts its oldest one.
"""

from __future__ import annotations

from typing import NamedTuple

from brokerd.errors import InvalidRequestError, NotReadyError
from brokerd.wire.v1.transaction_pb2 import EndTransactionRequest

MEMBERS_MAX = 50_000
PARTITIONS_MAX = 100_000
PAGES_KEPT_MS = 60_000
DECISIONS_PER_PRINCIPAL_MAX = 4


class _Key(NamedTuple):
    """Identifies a decision."""

    principal: str
    transactional_id: str
    version: int
    execution_id: str
    decision: int


class _Collected:
    """Pages 0 to `count` - 1 of a decision."""

    def __init__(self) -> None:
        self.count = 0
        self.last_ms = 0  # arrival of the newest page
        self.whole = EndTransactionRequest()  # members and distinct partitions of all pages
        self.partitions: set[tuple[bytes, int]] = set()


class Pages:
    """The incomplete decisions. Times are monotonic, ms."""

    def __init__(self) -> None:
        self._collected: dict[_Key, _Collected] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._collected)

    def add(self, principal: str, page: EndTransactionRequest, now_ms: int) -> EndTransactionRequest | None:
        """The whole decision, with the members and partitions of all pages, after its last page; None before. Pages may be resent.

        Raises InvalidRequestError if the decision is too large; NotReadyError if earlier pages are missing and the sender must
        start over at page 0.
        """
        if page.page == 0 and not page.more_pages:
            _check_size(page)
            return page
        self.expire(now_ms)
        key = _Key(principal, page.transactional_id, page.txn_version, page.execution_id, page.decision)
        collected = self._begin(key) if page.page == 0 else self._collected.get(key)
        if collected is None or page.page > collected.count:
            known = 0 if collected is None else collected.count
            raise NotReadyError(
                f"transactional id {page.transactional_id!r}, version {page.txn_version}: page {page.page} of the "
                f"decision came, but only {known} pages before it are known: send them again from page 0"
            )
        collected.last_ms = now_ms
        if page.page == collected.count:
            self._take(key, collected, page)
        if page.more_pages:
            return None
        del self._collected[key]
        whole = EndTransactionRequest()
        whole.CopyFrom(page)
        for field in ("members", "partitions"):
            whole.ClearField(field)
        whole.MergeFrom(collected.whole)
        return whole

    def expire(self, now_ms: int) -> None:
        """Drops decisions that got no page for PAGES_KEPT_MS."""
        late = [key for key, collected in self._collected.items() if now_ms - collected.last_ms >= PAGES_KEPT_MS]
        for key in late:
            del self._collected[key]

    def _begin(self, key: _Key) -> _Collected:
        self._collected.pop(key, None)
        own = [known for known in self._collected if known.principal == key.principal]
        for known in own[: max(len(own) - DECISIONS_PER_PRINCIPAL_MAX + 1, 0)]:
            del self._collected[known]
        collected = self._collected[key] = _Collected()
        return collected

    def _take(self, key: _Key, collected: _Collected, page: EndTransactionRequest) -> None:
        collected.count += 1
        collected.whole.members.extend(page.members)
        for one in page.partitions:
            if (one.topic_id, one.partition) not in collected.partitions:
                collected.partitions.add((one.topic_id, one.partition))
                collected.whole.partitions.append(one)
        try:
            _check_size(collected.whole, of=page)
        except InvalidRequestError:
            del self._collected[key]
            raise


def _check_size(whole: EndTransactionRequest, of: EndTransactionRequest | None = None) -> None:
    asked = of or whole
    limits = (("members", len(whole.members), MEMBERS_MAX), ("partitions", len(whole.partitions), PARTITIONS_MAX))
    for name, count, limit in limits:
        if count > limit:
            raise InvalidRequestError(
                f"transactional id {asked.transactional_id!r}, version {asked.txn_version}: the decision lists {count} "
                f"{name}, more than {limit}: write the batch with fewer tasks or topics"
            )
