"""Options of the sink: names as Spark's Kafka connector spells them, every producer setting bare or behind `kafka.`.

The only place where the sink's options are parsed; what comes out is frozen and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from brokerd.config.client import ProducerConfig, producer_config
from brokerd.config.settings import settings_of
from brokerd.config.spark_options import REFUSED_EVERYWHERE, parse_flag, require_servers, split_options
from brokerd.errors import ConfigError
from brokerd.ids import topic_name_problem

WHERE = "(option of the brokerd sink)"
OWN_OPTIONS = ("topic", "includeHeaders")

# A micro-batch hands its rows over within milliseconds and then flushes: waiting longer only makes fuller batches.
SINK_DEFAULTS = {"linger.ms": "100"}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What the user asked of the sink."""

    topic: str | None  # overrides the topic column; None = the column names each row's topic
    include_headers: bool
    # As given, with the sink's defaults; plain, so that it pickles; in no repr, since one of them may be auth.token.
    producer_settings: tuple[tuple[str, str], ...] = field(repr=False)
    bootstrap_servers: str

    def producer_config(self) -> ProducerConfig:
        """The producer's checked configuration."""
        return producer_config(dict(self.producer_settings), where=WHERE)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """The sink's options from Spark's. Raises ConfigError with one sentence that names the option."""
    split = split_options(options, own=OWN_OPTIONS, settings=settings_of(ProducerConfig), refused=REFUSED_EVERYWHERE, where=WHERE)
    require_servers(split.settings, WHERE)
    topic = split.get("topic")
    if topic is not None:
        problem = topic_name_problem(topic)
        if problem:
            raise ConfigError(f"topic '{topic}' is not a topic's name: {problem}")
    settings = {**SINK_DEFAULTS, **split.settings}
    config = producer_config(settings, where=WHERE)
    return SinkOptions(
        topic=topic,
        include_headers=parse_flag("includeHeaders", split.get("includeHeaders"), default=False),
        producer_settings=tuple(sorted(settings.items())),
        bootstrap_servers=config.bootstrap_servers,
    )
