"""Options of the sink: named as in Spark's Kafka connector, and every producer setting, bare or with the prefix `kafka.`.

The only module that parses the sink's options; the result is frozen and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brokerd.config.client import ProducerConfig, producer_config
from brokerd.config.spark_options import SINK, parse_flag, require_servers, split_options
from brokerd.errors import ConfigError
from brokerd.ids import topic_name_problem

# A micro-batch passes its rows within milliseconds and then flushes, so a longer linger only makes fuller batches.
SINK_DEFAULTS = {"linger.ms": "100"}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options of a write."""

    topic: str | None  # overrides the topic column; None = the column names each row's topic
    include_headers: bool  # if false, a headers column is an error
    producer: ProducerConfig  # checked once, on the driver; tasks reuse it


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parses the sink's options. Raises ConfigError with one sentence that names the option."""
    split = split_options(options, SINK)
    require_servers(split.settings, SINK)
    if "transactional.id" in split.settings:
        raise ConfigError("option 'transactional.id' is not accepted by the sink: it writes outside of transactions so far")
    topic = split.get("topic")
    if topic is not None:
        problem = topic_name_problem(topic)
        if problem:
            raise ConfigError(f"topic '{topic}' is not a topic's name: {problem}")
    return SinkOptions(
        topic=topic,
        include_headers=parse_flag("includeHeaders", split.get("includeHeaders"), default=True),
        producer=producer_config({**SINK_DEFAULTS, **split.settings}, where=SINK.where),
    )
