"""Options of the sink: names as Spark's Kafka connector spells them, every producer setting bare or behind `kafka.`.

The only place where the sink's options are parsed; what comes out is frozen and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brokerd.config.client import ProducerConfig, producer_config
from brokerd.config.spark_options import SINK, parse_flag, require_servers, split_options
from brokerd.errors import ConfigError
from brokerd.ids import topic_name_problem

# A micro-batch hands its rows over within milliseconds and then flushes: waiting longer only makes fuller batches.
SINK_DEFAULTS = {"linger.ms": "100"}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What the user asked of the sink."""

    topic: str | None  # overrides the topic column; None = the column names each row's topic
    include_headers: bool  # false: a column of headers is a contradiction
    producer: ProducerConfig  # checked on the driver, once; tasks get it as it is


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The sink's options from Spark's. Raises ConfigError with one sentence that names the option."""
    split = split_options(options, SINK)
    require_servers(split.settings, SINK)
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
