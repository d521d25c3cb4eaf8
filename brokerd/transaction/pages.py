"""Decisions too large for one request come in pages: the pages that came so far, until the last is there.

A decision is asked about from page 0; a page that does not follow the one before is refused so that its sender begins again. Pages
are kept for a limited time, and a principal's oldest decision gives way to a newer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from brokerd.errors import InvalidRequestError, NotReadyError
from brokerd.ids import TopicIdPartition
from brokerd.transaction.model import EndRequest, MemberReport

MEMBERS_MAX = 50_000
PARTITIONS_MAX = 100_000
PAGES_KEPT_MS = 60_000
DECISIONS_PER_PRINCIPAL_MAX = 4


class Page(NamedTuple):
    """One request: a decision whose members and partitions are those of the page alone. Pages count from 0."""

    asked: EndRequest
    is_commit: bool
    number: int
    more: bool


class _Key(NamedTuple):
    principal: str
    transactional_id: str
    version: int
    execution_id: str
    is_commit: bool


class _Collected:
    """Pages 0 to `count` - 1 of a decision."""

    def __init__(self) -> None:
        self.count = 0
        self.last_ms = 0  # when the newest came
        self.members: list[Sequence[MemberReport]] = []  # by page
        self.partitions: dict[TopicIdPartition, None] = {}


class Pages:
    """See the module. Times are monotonic, ms."""

    def __init__(self) -> None:
        self._collected: dict[_Key, _Collected] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._collected)

    def add(self, page: Page, now_ms: int) -> EndRequest | None:
        """The whole decision once its last page is there. A page may be repeated.

        Raises InvalidRequestError if the decision is too large; NotReadyError if pages before it are missing: send it again from
        page 0.
        """
        asked = page.asked
        if page.number == 0 and not page.more:
            self._check_size(asked, len(asked.members), len(asked.partitions))
            return asked
        self.expire(now_ms)
        key = _Key(asked.principal, asked.transactional_id, asked.execution.version, asked.execution.execution_id, page.is_commit)
        collected = self._begin(key) if page.number == 0 else self._collected.get(key)
        if collected is None or page.number > collected.count:
            known = 0 if collected is None else collected.count
            raise NotReadyError(
                f"transactional id {asked.transactional_id!r}, version {asked.execution.version}: page {page.number} of the "
                f"decision came, but only {known} pages before it are known: send them again from page 0"
            )
        collected.last_ms = now_ms
        if page.number == collected.count:
            self._take(key, collected, asked)
        if page.more:
            return None
        del self._collected[key]
        members = [member for members in collected.members for member in members]
        return asked._replace(members=members, partitions=list(collected.partitions))

    def expire(self, now_ms: int) -> None:
        """Drops decisions whose next page has not come for too long."""
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

    def _take(self, key: _Key, collected: _Collected, asked: EndRequest) -> None:
        collected.count += 1
        collected.members.append(asked.members)
        collected.partitions.update(dict.fromkeys(asked.partitions))
        try:
            self._check_size(asked, sum(map(len, collected.members)), len(collected.partitions))
        except InvalidRequestError:
            del self._collected[key]
            raise

    def _check_size(self, asked: EndRequest, members: int, partitions: int) -> None:
        for name, count, limit in (("members", members, MEMBERS_MAX), ("partitions", partitions, PARTITIONS_MAX)):
            if count > limit:
                raise InvalidRequestError(
                    f"transactional id {asked.transactional_id!r}, version {asked.execution.version}: the decision lists {count} "
                    f"{name}, more than {limit}: write the batch with fewer tasks or topics"
                )
