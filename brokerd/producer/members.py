"""Makes a producer a member of a transaction, and ends that. It runs in the sender's thread (see mailbox.py); the rules are in
core/identity.py."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.clock import Clock
from brokerd.config.client import ProducerConfig, transaction_conflict
from brokerd.errors import AbortedBatchError, ConfigError, TransactionStateError, fresh
from brokerd.producer.core.identity import Identity
from brokerd.producer.core.membership import MemberReport, Membership
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.intake import Intake
from brokerd.producer.mailbox import Work


class Members:
    """The members of one producer, one after the other. `wake` makes the sender take a step."""

    def __init__(
        self, config: ProducerConfig, core: ProducerCore, *, intake: Intake, clock: Clock, wake: Callable[[], None]
    ) -> None:
        self._config = config
        self._core = core
        self._intake = intake
        self._clock = clock
        self._wake = wake
        self._last_report = MemberReport()
        self._aborting: Identity | None = None

    def begin(self, membership: Membership) -> Work[None]:
        """Begins a member: see Producer.begin_member. An abort goes on after its caller was interrupted, and is awaited."""
        while self._core.identities.present is self._aborting:
            yield
        conflict = transaction_conflict(self._config)
        if conflict:
            raise ConfigError(f"a transaction needs {conflict}: change the producer's settings")
        self._intake.check_open()
        if self._core.identities.present.membership is not None:
            raise TransactionStateError(f"{_named(self._core.identities.present)} is open: end it before the next one begins")
        self._intake.place_all()
        if self._core.accumulator.has_incomplete:
            raise TransactionStateError("records that were sent before the transaction are not acknowledged yet: flush() first")
        self._core.begin_member(membership)

    def end(self, flush: Callable[[], Work[None]]) -> Work[MemberReport]:
        """Ends the member once all its records are acknowledged: see Producer.end_member."""
        self._intake.check_open()
        identity = self._core.identities.present
        if identity.membership is None:
            raise TransactionStateError("no transaction is open")
        while True:
            yield from flush()
            if self._core.identities.present is not identity:
                raise TransactionStateError(f"{_named(identity)} was ended meanwhile")
            self._intake.place_all()
            if not self._core.accumulator.has_incomplete:  # nobody sent something more while this waited
                break
        report = self._finish()
        if identity.error is not None:
            raise fresh(identity.error)
        return report

    def abort(self, deadline_ms: int, only: Membership | None = None) -> Work[MemberReport]:
        """Ends the member in any case: see Producer.abort_member."""
        identity = self._core.identities.present
        if identity.membership is None or (only is not None and identity.membership != only):
            return self._last_report
        error = AbortedBatchError(f"{_named(identity)} was aborted: nothing of it will be visible")
        self._core.stop(error, self._clock.monotonic_ms())
        self._intake.place_all()
        self._aborting = identity
        self._wake()
        while identity.is_id_under_way and not self._intake.is_closed and self._clock.monotonic_ms() < deadline_ms:
            yield
        return self._finish() if self._core.identities.present is identity else self._last_report

    def _finish(self) -> MemberReport:
        self._last_report = self._core.end_member()
        return self._last_report


def _named(identity: Identity) -> str:
    assert identity.membership is not None
    return f"transaction {identity.membership.txn_version} of '{identity.membership.transactional_id}'"
