"""Options of the sink: names as Spark's Kafka connector spells them, every producer setting bare or behind `kafka.`.

The only place where the sink's options are parsed; what comes out is frozen and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    # As given, with the sink's defaults; plain, so that it pickles; in no repr, since one of them may be auth.token.
    producer_settings: tuple[tuple[str, str], ...] = field(repr=False)
    bootstrap_servers: str

    def producer_config(self) -> ProducerConfig:
        """The producer's checked configuration."""
        return producer_config(dict(self.producer_settings), where=SINK.where)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The sink's options from Spark's. Raises ConfigError with one sentence that names the option."""
    split = split_options(options, SINK)
    require_servers(split.settings, SINK)
    topic = split.get("topic")
    if topic is not None:
        problem = topic_name_problem(topic)
        if problem:
            raise ConfigError(f"topic '{topic}' is not a topic's name: {problem}")
    settings = {**SINK_DEFAULTS, **split.settings}
    config = producer_config(settings, where=SINK.where)
    return SinkOptions(
        topic=topic,
        include_headers=parse_flag("includeHeaders", split.get("includeHeaders"), default=True),
        producer_settings=tuple(sorted(settings.items())),
        bootstrap_servers=config.bootstrap_servers,
    )
