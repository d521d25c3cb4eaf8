"""Builds the errors of failed records: which records, why, and whether they may be in the log. producer_core.py decides which
batches fail.
"""

from __future__ import annotations

from brokerd.config.client import ProducerConfig
from brokerd.errors import (
    AbortedBatchError,
    Action,
    BrokerdError,
    BrokerUnreachableError,
    DeliveryTimeoutError,
    Fate,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    TransactionalIdAuthorizationFailedError,
    TransactionStateError,
    UnknownTopicIdError,
    WireError,
    counted,
)
from brokerd.ids import TopicPartition
from brokerd.producer.core.accumulator import ProducerBatch
from brokerd.producer.core.transport import RequestLimits


def expired(batch: ProducerBatch, delivery_timeout_ms: int, last_trouble: BrokerdError | None) -> DeliveryTimeoutError:
    """The error of a batch that was not delivered within delivery.timeout.ms."""
    trouble = batch.last_error or last_trouble
    tail = f"; last trouble: {trouble}" if trouble else ""
    return DeliveryTimeoutError(
        f"{_subject(batch)} was not acknowledged in delivery.timeout.ms "
        f"({delivery_timeout_ms} ms), {counted(batch.attempts, 'attempt')}: {_where(batch)}{tail}"
    )


def beyond_request(batch: ProducerBatch, limits: RequestLimits, config: ProducerConfig) -> MessageTooLargeError:
    """The error of a batch too large for any request to this broker."""
    return MessageTooLargeError(
        f"a record batch of {batch.size_bytes} bytes fits into no request, the broker's socket.request.max.bytes leaves "
        f"{limits.bytes_max} for batches: raise it, or make records smaller (max.request.size is {config.max_request_size} here)",
        fate=Fate.NOT_APPENDED,
    )


def aborted(batch: ProducerBatch, reason: str) -> AbortedBatchError:
    """The error of a batch that was given up, for example by close()."""
    return AbortedBatchError(f"{_subject(batch)} was given up, {reason}: {_where(batch)}")


def overdue(node_id: int, config: ProducerConfig) -> BrokerUnreachableError:
    """The error of a stream without a response within request.timeout.ms."""
    return BrokerUnreachableError(f"node {node_id} did not answer in request.timeout.ms ({config.request_timeout_ms} ms)")


def topic_replaced(tp: TopicPartition) -> UnknownTopicIdError:
    """The error of records that may be in the old topic, and so are not written to the new one."""
    text = f"topic '{tp.topic}' was deleted or recreated while records were on their way to it"
    return UnknownTopicIdError(f"{text}; they may have been in the old one", fate=Fate.UNKNOWN)


def acknowledged_lost(batch: ProducerBatch, error: BrokerdError) -> OutOfOrderSequenceError:
    """The error when the broker expects a sequence that it has already acknowledged."""
    return OutOfOrderSequenceError(f"the broker lost acknowledged records of {batch.tp}, nothing more is written there: {error}")


def stopped(batch: ProducerBatch, error: BrokerdError) -> BrokerdError:
    """The error of a batch whose member failed, or that belongs to none."""
    if isinstance(error, TransactionalIdAuthorizationFailedError) or (
        isinstance(error, WireError) and error.action is Action.TRANSACTION_STATE
    ):
        may_be_there = batch.is_fate_unknown or batch.is_in_flight
        return type(error)(error.message, fate=Fate.UNKNOWN if may_be_there else Fate.NOT_APPENDED)
    if isinstance(error, TransactionStateError):
        return error
    # The first failure's message tells the fate of its own records, not of these, so only its name is quoted.
    aborted_with = AbortedBatchError(
        f"{_subject(batch)} was given up with the rest of its transaction, which failed with "
        f"{type(error).__name__}: {_where(batch)}"
    )
    aborted_with.__cause__ = error
    return aborted_with


def refused(batch: ProducerBatch, error: BrokerdError) -> BrokerdError:
    """The broker's error, with the fate of the records over all attempts instead of the last one alone."""
    if not isinstance(error, WireError) or error.fate is not Fate.NOT_APPENDED:
        return error
    if batch.is_fate_unknown:
        return type(error)(f"{error.message} (an earlier attempt may have written the records)", fate=Fate.UNKNOWN)
    if isinstance(error, MessageTooLargeError) and batch.record_count == 1:
        return MessageTooLargeError(
            f"one record of {batch.tp} is too large for the broker, in a batch of its own: {error.message}", fate=Fate.NOT_APPENDED
        )
    return error


def _subject(batch: ProducerBatch) -> str:
    return f"a batch of {counted(batch.record_count, 'record')} for {batch.tp}"


def _where(batch: ProducerBatch) -> str:
    may_be_there = batch.is_fate_unknown or batch.is_in_flight
    return "they may be in the log all the same" if may_be_there else "they are not in the log"
