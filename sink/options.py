"""Parses the sink's options: those of Spark's Kafka connector and Delta Lake by their names, and every producer setting, with or
without the prefix `kafka.`. The result is checked and frozen. Also checks a DataFrame's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from brokerd.config.client import ProducerConfig, producer_config, transaction_conflict
from brokerd.config.settings import INT64_MAX, is_number
from brokerd.config.spark_options import SINK, SplitOptions, parse_flag, require_servers, split_options
from brokerd.config.suggestions import did_you_mean
from brokerd.errors import ConfigError
from brokerd.ids import topic_name_problem

# A micro-batch sends its rows within milliseconds and then flushes, so a longer linger makes fuller batches at no cost in latency.
SINK_DEFAULTS = {"linger.ms": "100"}

_TRANSACTIONAL_ID = "transactional.id"
_NO_TRANSACTIONAL_ID = (
    "option 'transactional.id' is refused by the sink: two queries that share one would each take the other's batches for their "
    "own. Spark's query id names the transactions of a stream, txnAppId and txnVersion those of a batch write, and txnLabel tells "
    "two writes of one batch apart"
)
_OF_TRANSACTIONS = ("txnAppId", "txnVersion", "txnLabel", "failOnReplayMismatch")
_PART_MAX_LENGTH = 200  # of one part of a transactional id

_TEXT = ("string", "binary")
_HEADERS = "array<struct<key:string,value:binary>>"

# Column -> the types it may have, in Spark's simpleString notation.
ACCEPTED: dict[str, tuple[str, ...]] = {
    "key": _TEXT,
    "value": _TEXT,
    "headers": (_HEADERS,),
    "topic": ("string",),
    "partition": ("int", "smallint", "tinyint", "bigint"),
    "timestamp": ("timestamp",),
}

# Columns of the source that no writer can set: ignored, so that one topic can be copied to another unchanged.
SOURCE_ONLY = ("offset", "timestampType")

_ACCEPTED_TEXT = (
    "value (string or binary) is required; key (string or binary), headers, topic, partition (int) and timestamp are optional"
)


class Delivery(Enum):
    """The delivery guarantee of a write."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class TransactionOptions(NamedTuple):
    """Options that select the transaction. `app_id` and `version` are given together."""

    app_id: str | None = None
    version: int | None = None
    label: str | None = None


NO_TRANSACTION_OPTIONS = TransactionOptions()


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options of a write."""

    topic: str | None  # overrides the topic column; None = the column names each row's topic
    include_headers: bool  # if false, a headers column is an error
    producer: ProducerConfig  # checked once, on the driver; tasks reuse it
    delivery: Delivery = Delivery.EXACTLY_ONCE
    transaction: TransactionOptions = NO_TRANSACTION_OPTIONS
    fail_on_replay_mismatch: bool = True


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parses the sink's options. Raises ConfigError with one sentence that names the option."""
    split = split_options(options, SINK)
    require_servers(split.settings, SINK)
    topic = split.get("topic")
    if topic is not None:
        problem = topic_name_problem(topic)
        if problem:
            raise ConfigError(f"topic '{topic}' is not a topic's name: {problem}")
    delivery = _parse_delivery(split)
    if _TRANSACTIONAL_ID in split.settings:
        raise ConfigError(_NO_TRANSACTIONAL_ID)
    if delivery is Delivery.AT_LEAST_ONCE:
        _refuse_transactions(split)
    return SinkOptions(
        topic=topic,
        include_headers=parse_flag("includeHeaders", split.get("includeHeaders"), default=True),
        producer=_producer_config(split.settings, delivery),
        delivery=delivery,
        transaction=_parse_transaction(split),
        fail_on_replay_mismatch=parse_flag("failOnReplayMismatch", split.get("failOnReplayMismatch"), default=True),
    )


def _parse_delivery(split: SplitOptions) -> Delivery:
    text = split.get("delivery", Delivery.EXACTLY_ONCE.value).strip().lower()
    try:
        return Delivery(text)
    except ValueError:
        raise ConfigError(f"delivery must be exactly_once or at_least_once, not '{text:.200}'") from None


def _refuse_transactions(split: SplitOptions) -> None:
    given = [name for name in _OF_TRANSACTIONS if name in split]
    if given:
        raise ConfigError(
            f"option '{given[0]}' is of transactions, which delivery=at_least_once does not use: remove one of the two"
        )


def _producer_config(settings: Mapping[str, str], delivery: Delivery) -> ProducerConfig:
    config = producer_config({**SINK_DEFAULTS, **settings}, where=SINK.where)
    conflict = transaction_conflict(config) if delivery is Delivery.EXACTLY_ONCE else None
    if conflict:
        raise ConfigError(f"delivery=exactly_once needs {conflict} {SINK.where}: change it, or set delivery=at_least_once")
    return config


def _parse_transaction(split: SplitOptions) -> TransactionOptions:
    app_id, version = split.get("txnAppId"), split.get("txnVersion")
    if (app_id is None) != (version is None):
        missing = "txnVersion" if version is None else "txnAppId"
        raise ConfigError(f"option '{missing}' is missing {SINK.where}: txnAppId and txnVersion are given together, as with Delta")
    for name, text in (("txnAppId", app_id), ("txnLabel", split.get("txnLabel"))):
        if text is not None and not (1 <= len(text) <= _PART_MAX_LENGTH and text.isprintable()):
            shown = text[: _PART_MAX_LENGTH + 1]
            raise ConfigError(f"{name} must have 1 to {_PART_MAX_LENGTH} printable characters, not '{shown!a}'")
    if app_id is not None and "/" in app_id:
        raise ConfigError(f"txnAppId '{app_id}' must not hold '/', which separates it from the topic")
    return TransactionOptions(app_id, _parse_version(version), split.get("txnLabel"))


def _parse_version(text: str | None) -> int | None:
    if text is None:
        return None
    digits = text.strip()
    if not is_number(digits, INT64_MAX):
        raise ConfigError(f"txnVersion must be a whole number between 0 and {INT64_MAX}, not '{text:.200}'")
    return int(digits)


def check_columns(columns: Sequence[tuple[str, str]], *, topic: str | None, include_headers: bool) -> None:
    """Checks that a DataFrame's columns, as (name, Spark type), can become records. Raises ConfigError naming the column.

    `topic` is the sink's option: without it each row must name its topic. Spark's Kafka sink ignores unknown columns. They are
    refused here: the data of a mistyped `Key` would be lost silently.
    """
    names = [name for name, _ in columns]
    if "value" not in names:
        raise ConfigError(f"column 'value' is missing (found: {', '.join(names) or 'none'}); {_ACCEPTED_TEXT}")
    for name, kind in columns:
        if name in SOURCE_ONLY:
            continue
        if name not in ACCEPTED:
            raise ConfigError(
                f"column '{name}' is not one that the sink writes{_hint(name)}; drop it, or rename it: {_ACCEPTED_TEXT}"
            )
        if _plain_type(kind) not in ACCEPTED[name]:
            raise ConfigError(f"column '{name}' is {kind}, but must be {' or '.join(ACCEPTED[name])}; {_cast_text(name)}")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"column '{twice}' is given twice: keep one")
    if "headers" in names and not include_headers:
        raise ConfigError("column 'headers' is not written with option includeHeaders=false: remove the option, or drop the column")
    if topic is None and "topic" not in names:
        raise ConfigError("no topic to write to: set option 'topic', or add a column 'topic'")


def _plain_type(kind: str) -> str:
    return "string" if kind.startswith(("varchar(", "char(")) else kind


def _hint(name: str) -> str:
    hint = did_you_mean(name, ACCEPTED, otherwise="")
    return f" ({hint})" if hint else ""


def _cast_text(name: str) -> str:
    if name in ("key", "value"):
        return f"cast it, such as CAST({name} AS STRING) or to_json(struct(*))"
    return f"cast it to {ACCEPTED[name][0]}"
