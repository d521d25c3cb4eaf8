"""The closed list of errors: one class per code, and the one place that says what each means for a client.

DataDirectoryError: the broker cannot use its data directory. CoordinationError: it cannot use its cluster's coordination store. A
WireError has an ErrorCode and travels in responses. A ClientError is raised in the client's own process.

The hundreds digit of a code says what to do with it (see `Action`). An error's text names the field, the value, the limit and the
remedy. Translation to and from protobuf is in brokerd/wire/errors.py, not here.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Iterable
from typing import ClassVar, TypedDict, TypeVar, Unpack


class ErrorCode(enum.IntEnum):
    """Codes of the wire; comments are in proto/brokerd/wire/v1/error.proto (a test keeps the two equal)."""

    NONE = 0
    UNKNOWN_SERVER_ERROR = 1
    INVALID_REQUEST = 2
    CORRUPT_MESSAGE = 3
    MESSAGE_TOO_LARGE = 4
    UNSUPPORTED_VERSION = 5
    INVALID_TOPIC = 6
    TOPIC_ALREADY_EXISTS = 7
    INVALID_PARTITIONS = 8
    INVALID_CONFIG = 9
    INVALID_REPLICATION_FACTOR = 10
    OFFSET_OUT_OF_RANGE = 11
    POLICY_VIOLATION = 12
    INVALID_REQUIRED_ACKS = 13
    TOPIC_AUTHORIZATION_FAILED = 14
    LOG_DAMAGED = 15
    INVALID_TIMESTAMP = 17
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 18
    GROUP_AUTHORIZATION_FAILED = 19
    UNKNOWN_GROUP = 20
    OFFSET_METADATA_TOO_LARGE = 21
    LOG_TRUNCATION = 22
    REQUEST_TIMED_OUT = 100
    STORAGE_ERROR = 101
    RESOURCE_EXHAUSTED = 102
    NOT_READY = 103
    OFFSET_NOT_AVAILABLE = 106
    COORDINATOR_LOAD_IN_PROGRESS = 107
    COORDINATOR_NOT_AVAILABLE = 108
    NOT_ENOUGH_REPLICAS = 109
    UNKNOWN_TOPIC_OR_PARTITION = 200
    UNKNOWN_TOPIC_ID = 201
    NOT_LEADER = 202
    FENCED_LEADER_EPOCH = 203
    UNKNOWN_LEADER_EPOCH = 204
    NOT_COORDINATOR = 205
    OUT_OF_ORDER_SEQUENCE_NUMBER = 300
    DUPLICATE_SEQUENCE_NUMBER = 301
    UNKNOWN_PRODUCER_ID = 302
    INVALID_PRODUCER_EPOCH = 303
    INVALID_TXN_STATE = 400
    PRODUCER_FENCED = 401
    ALREADY_COMMITTED = 402
    TXN_CONFLICT = 403
    REPLAY_MISMATCH = 404
    TXN_ABORTED = 405


class Action(enum.Enum):
    """How a client handles an error, given by the hundreds digit of its code."""

    FAIL = 0
    RETRY = 1
    REFRESH_AND_RETRY = 2
    PRODUCER_STATE = 3
    TRANSACTION_STATE = 4


def action_of(code: int) -> Action:
    """How to handle `code`, even one that this version does not know (outside all ranges: FAIL)."""
    return Action(code // 100) if 0 <= code < 500 else Action.FAIL


class Fate(enum.IntEnum):
    """Whether a failed append may be in the log."""

    UNSPECIFIED = 0
    NOT_APPENDED = 1
    UNKNOWN = 2


class ErrorFields(TypedDict, total=False):
    """Numbers that an error carries besides its text; error.proto gives their meaning and unit."""

    fate: Fate
    retry_after_ms: int
    current_leader: int
    current_leader_epoch: int
    log_start_offset: int
    expected_sequence: int
    current_epoch: int
    resume_offset: int


class BrokerdError(Exception):
    """Root of all errors that brokerd raises on purpose. `message` is one human-readable sentence."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


E = TypeVar("E", bound=BrokerdError)


def fresh(error: E) -> E:
    """A copy of a stored error, to raise. Each raise extends the instance's traceback, which keeps alive every frame that caught
    the error and everything those frames refer to."""
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


class DataDirectoryError(BrokerdError):
    """A data directory cannot be used: locked, of an unknown format version, or its own files are damaged."""


class CoordinationError(BrokerdError):
    """A cluster's coordination store does not respond, or refuses a request. `is_fate_unknown`: the change may have been made.
    `is_away`: the store was not reached, but may become reachable."""

    def __init__(self, message: str, *, is_fate_unknown: bool = False, is_away: bool = False) -> None:
        super().__init__(message)
        self.is_fate_unknown = is_fate_unknown
        self.is_away = is_away


class WireError(BrokerdError):
    """An error that has a code and travels in responses. Fields that do not apply are -1 (retry_after_ms: 0)."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, message: str, **fields: Unpack[ErrorFields]) -> None:
        super().__init__(message)
        self.fate = fields.get("fate", Fate.UNSPECIFIED)
        self.retry_after_ms = fields.get("retry_after_ms", 0)
        self.current_leader = fields.get("current_leader", -1)
        self.current_leader_epoch = fields.get("current_leader_epoch", -1)
        self.log_start_offset = fields.get("log_start_offset", -1)
        self.expected_sequence = fields.get("expected_sequence", -1)
        self.current_epoch = fields.get("current_epoch", -1)
        self.resume_offset = fields.get("resume_offset", -1)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message,), self.__dict__)

    @property
    def action(self) -> Action:
        """How a client handles this error."""
        return action_of(self.code)

    @property
    def retriable(self) -> bool:
        """True if the same request may succeed later."""
        return self.action in (Action.RETRY, Action.REFRESH_AND_RETRY)

    @property
    def refresh_metadata(self) -> bool:
        """True if the client should fetch new metadata first."""
        return self.action is Action.REFRESH_AND_RETRY


class UnknownServerError(WireError):
    code = ErrorCode.UNKNOWN_SERVER_ERROR


class InvalidRequestError(WireError):
    code = ErrorCode.INVALID_REQUEST


class CorruptMessageError(WireError):
    code = ErrorCode.CORRUPT_MESSAGE


class MessageTooLargeError(WireError):
    code = ErrorCode.MESSAGE_TOO_LARGE


class UnsupportedVersionError(WireError):
    code = ErrorCode.UNSUPPORTED_VERSION


class InvalidTopicError(WireError):
    code = ErrorCode.INVALID_TOPIC


class TopicAlreadyExistsError(WireError):
    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitionsError(WireError):
    code = ErrorCode.INVALID_PARTITIONS


class InvalidConfigError(WireError):
    code = ErrorCode.INVALID_CONFIG


class InvalidReplicationFactorError(WireError):
    code = ErrorCode.INVALID_REPLICATION_FACTOR


class OffsetOutOfRangeError(WireError):
    code = ErrorCode.OFFSET_OUT_OF_RANGE


class PolicyViolationError(WireError):
    code = ErrorCode.POLICY_VIOLATION


class InvalidRequiredAcksError(WireError):
    code = ErrorCode.INVALID_REQUIRED_ACKS


class TopicAuthorizationFailedError(WireError):
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class LogDamagedError(WireError):
    code = ErrorCode.LOG_DAMAGED


class InvalidTimestampError(WireError):
    code = ErrorCode.INVALID_TIMESTAMP


class TransactionalIdAuthorizationFailedError(WireError):
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class GroupAuthorizationFailedError(WireError):
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED


class UnknownGroupError(WireError):
    code = ErrorCode.UNKNOWN_GROUP


class OffsetMetadataTooLargeError(WireError):
    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class LogTruncationError(WireError):
    code = ErrorCode.LOG_TRUNCATION


class RequestTimedOutError(WireError):
    code = ErrorCode.REQUEST_TIMED_OUT


class StorageError(WireError):
    code = ErrorCode.STORAGE_ERROR


class ResourceExhaustedError(WireError):
    code = ErrorCode.RESOURCE_EXHAUSTED


class NotReadyError(WireError):
    code = ErrorCode.NOT_READY


class OffsetNotAvailableError(WireError):
    code = ErrorCode.OFFSET_NOT_AVAILABLE


class CoordinatorLoadInProgressError(WireError):
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class CoordinatorNotAvailableError(WireError):
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class NotEnoughReplicasError(WireError):
    code = ErrorCode.NOT_ENOUGH_REPLICAS


class UnknownTopicOrPartitionError(WireError):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class UnknownTopicIdError(WireError):
    code = ErrorCode.UNKNOWN_TOPIC_ID


class NotLeaderError(WireError):
    code = ErrorCode.NOT_LEADER


class FencedLeaderEpochError(WireError):
    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpochError(WireError):
    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class NotCoordinatorError(WireError):
    code = ErrorCode.NOT_COORDINATOR


class OutOfOrderSequenceError(WireError):
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class DuplicateSequenceError(WireError):
    code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER


class UnknownProducerIdError(WireError):
    code = ErrorCode.UNKNOWN_PRODUCER_ID


class InvalidProducerEpochError(WireError):
    code = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTxnStateError(WireError):
    code = ErrorCode.INVALID_TXN_STATE


class ProducerFencedError(WireError):
    code = ErrorCode.PRODUCER_FENCED


class AlreadyCommittedError(WireError):
    code = ErrorCode.ALREADY_COMMITTED


class TxnConflictError(WireError):
    code = ErrorCode.TXN_CONFLICT


class ReplayMismatchError(WireError):
    code = ErrorCode.REPLAY_MISMATCH


class TxnAbortedError(WireError):
    code = ErrorCode.TXN_ABORTED


ERROR_CLASSES: dict[int, type[WireError]] = {cls.code: cls for cls in WireError.__subclasses__()}


def error_from_code(code: int, message: str, **fields: Unpack[ErrorFields]) -> WireError:
    """The error for a code on the wire. A code that this version does not know becomes the general error of its range."""
    known = ERROR_CLASSES.get(code)
    if known is None:
        fallback = {Action.RETRY: NotReadyError, Action.REFRESH_AND_RETRY: NotLeaderError}
        known = fallback.get(action_of(code), UnknownServerError)
        message = f"{message} (code {code}, unknown to this version)"
    return known(message, **fields)


class ClientError(BrokerdError):
    """Raised in the client's own process; never on the wire. `taken_rows`: how many leading rows of a `send_batch` were accepted
    before the error and are on their way; the rest were not."""

    taken_rows: int = 0


class ConfigError(ClientError, ValueError):
    """A setting or option is unknown, malformed, out of range or contradicts another."""


class BrokerUnreachableError(ClientError, ConnectionError):
    """A broker did not respond; the text names its address, or `address` does, and the time spent trying."""

    def __init__(self, message: str, *, address: str = "", is_final: bool = False) -> None:
        super().__init__(message)
        self.address = address  # of the node that did not respond; empty = not one node
        self.is_final = is_final  # all attempts failed until the timeout: the caller must not retry


class TransactionStateError(ClientError):
    """A call that needs an open transaction was made without one, or vice versa."""


class AuthenticationError(ClientError):
    """The broker rejected this client's identity, or the client the broker's. `may_pass`: a retry may succeed, because the broker
    may be restarting or may not have read a new token yet."""

    def __init__(self, message: str, *, may_pass: bool = True) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class ProducerClosedError(ClientError):
    """The producer was closed, or has failed permanently; its first failure is the `__cause__`."""


class BufferExhaustedError(ClientError, TimeoutError):
    """buffer.memory stayed full for max.block.ms."""


class DeliveryTimeoutError(ClientError, TimeoutError):
    """delivery.timeout.ms passed, or no answer says how a commit has ended; the text says whether the records may be in the log."""


class AbortedBatchError(ClientError):
    """The batch was dropped by abort(), or by a close() that ran out of time."""


class ForkedProducerError(ClientError):
    """A producer was used in a process that was forked after it was created."""


class ConsumerClosedError(ClientError):
    """The consumer was closed."""


class ConsumerStateError(ClientError):
    """The consumer cannot do this now: another thread is using it, a partition is not assigned, there is no group."""


class ForkedConsumerError(ClientError):
    """A consumer was used in a process that was forked after it was created."""


class DedupFileError(ClientError):
    """The file of handled message ids (`dedup_path` of `Consumer.process`) cannot be used."""


class EventLoopError(ClientError):
    """A client of brokerd.aio was used outside of its event loop, or would have blocked it."""


class HandlerTimeoutError(ClientError, TimeoutError):
    """A handler of `Consumer.process` exceeded its time limit; its record is not committed."""


class NoOffsetForPartitionError(ClientError):
    """A partition has no committed offset, and auto.offset.reset is none."""


class WakeupError(ClientError):
    """Another thread called wakeup() of the consumer."""


class InvalidRecordError(ClientError, ValueError):
    """A row cannot become a record: no topic, an invalid partition, or a header without a key."""


class DataLossError(ClientError):
    """Records that a reader was about to read are gone; the text says how many, and which offset comes next."""


def some_of(names: Iterable[str], most: int = 5) -> str:
    """The first `most` names, and the number of the remaining ones."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def counted(count: int, noun: str) -> str:
    """A number and its noun, such as "1 record" and "2 records"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
