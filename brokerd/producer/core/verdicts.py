"""Judges a batch that was refused, or got no response. Pure."""

from __future__ import annotations

from brokerd.errors import (
    BrokerdError,
    BrokerUnreachableError,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
    WireError,
)
from brokerd.producer.core.idempotence import Verdict
from brokerd.producer.core.producer_batch import ProducerBatch


def verdict_on(batch: ProducerBatch, error: BrokerdError, *, retries: int) -> Verdict:
    """Whether to retry, split or fail a batch of a producer that may write."""
    if isinstance(error, MessageTooLargeError) and batch.record_count > 1:
        return Verdict.SPLIT
    if batch.attempts > retries:
        return Verdict.FAIL
    if isinstance(error, BrokerUnreachableError):
        return Verdict.RETRY
    assert isinstance(error, WireError)
    if batch.numbered_by is not None:
        if isinstance(error, OutOfOrderSequenceError):
            return batch.numbered_by.on_out_of_order(batch, error)
        if isinstance(error, UnknownProducerIdError):
            return batch.numbered_by.on_unknown_producer_id(batch, error)
    return Verdict.RETRY if error.retriable else Verdict.FAIL
