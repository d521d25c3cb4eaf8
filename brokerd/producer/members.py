"""Makes a producer a member of a transaction, and ends that; the rules are in core/identity.py."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.config.client import ProducerConfig, transaction_conflict
from brokerd.errors import AbortedBatchError, ConfigError, TransactionStateError, fresh
from brokerd.producer.core.identity import Identity
from brokerd.producer.core.membership import MemberReport, Membership
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.intake import Intake
from brokerd.producer.waiting import Wait


class Members:
    """The members of one producer, one after the other. `wake` makes the sender take a step."""

    def __init__(self, config: ProducerConfig, core: ProducerCore, *, intake: Intake, wake: Callable[[], None]) -> None:
        self._config = config
        self._core = core
        self._intake = intake
        self._wake = wake

    def begin(self, membership: Membership) -> Wait[bool]:
        """Begins a member: see Producer.begin_member. Waits for the end of one that is being aborted, whoever began that."""

        def poll(now_ms: int) -> bool | None:
            conflict = transaction_conflict(self._config)
            if conflict:
                raise ConfigError(f"a transaction needs {conflict}: change the producer's settings")
            self._intake.check_open()
            present = self._core.identities.present
            if present.abort_by_ms is not None:
                return True if self._intake.end_aborted(now_ms) and self._begin(membership) else None
            if present.membership is not None:
                raise TransactionStateError(f"{_named(present)} is open: end it before the next one begins")
            return self._begin(membership)

        return Wait(poll)

    def _begin(self, membership: Membership) -> bool:
        if self._intake.has_unacknowledged:
            raise TransactionStateError("records that were sent before the transaction are not acknowledged yet: flush() first")
        self._core.begin_member(membership)
        return True

    def end(self, timeout: float | None, deadline_ms: int) -> Wait[MemberReport]:
        """Ends the member once all its records are acknowledged: see Producer.end_member."""
        identity: Identity | None = None
        flush = self._intake.for_flush(timeout, deadline_ms)

        def poll(now_ms: int) -> MemberReport | None:
            nonlocal identity, flush
            if identity is None:
                self._intake.check_open()
                identity = self._core.identities.present
            if identity.membership is None:
                raise TransactionStateError("no transaction is open")
            if flush.poll(now_ms) is None:
                return None
            if self._core.identities.present is not identity:
                raise TransactionStateError(f"{_named(identity)} was ended meanwhile")
            if self._intake.has_unacknowledged:  # another thread sent more while this one waited
                flush = self._intake.for_flush(timeout, deadline_ms)
                flush.poll(now_ms)
                return None
            report = self._core.end_member()
            if identity.error is not None:
                raise fresh(identity.error)
            return report

        return Wait(poll, deadline_ms, lambda: flush.is_due is None or flush.is_due())

    def abort(self, deadline_ms: int, only: Membership | None = None) -> Wait[MemberReport]:
        """Ends the member in any case: see Producer.abort_member."""
        identity: Identity | None = None

        def poll(now_ms: int) -> MemberReport | None:
            nonlocal identity
            if identity is None:
                present = self._core.identities.present
                if present.membership is None or (only is not None and present.membership != only):
                    return self._core.last_report
                error = AbortedBatchError(f"{_named(present)} was aborted: nothing of it will be visible")
                self._wake()
                identity = present
                present.error = present.error or error
                present.abort_by_ms = deadline_ms  # from here on it ends, whoever waits for that
            self._intake.end_aborted(now_ms)
            return self._core.last_report if self._core.identities.present is not identity else None

        return Wait(poll, deadline_ms)


def _named(identity: Identity) -> str:
    assert identity.membership is not None
    return f"transaction {identity.membership.txn_version} of '{identity.membership.transactional_id}'"
