"""The Spark options that are the source's or the sink's own, as Spark's Kafka connector spells them: name, default, one sentence.

What they may be set beside (client settings), and how all of them are told apart, is in spark_options.py; values are parsed by
the source and by the sink. A name without default is simply not set.
"""

from __future__ import annotations

from typing import NamedTuple


class SparkOption(NamedTuple):
    """One option. `default` as a user would write it; empty = none."""

    name: str
    default: str
    doc: str


_NO_EFFECT = "Taken so that a ported pipeline runs, without effect: "

SOURCE_OPTIONS = (
    SparkOption("subscribe", "", "Topics to read, separated by commas. One of this, subscribePattern and assign is required."),
    SparkOption("subscribePattern", "", "Java regular expression; topics are read in whose name it is found, later ones too."),
    SparkOption("assign", "", 'Partitions to read, as JSON: {"topic": [0, 1]}.'),
    SparkOption("startingTimestamp", "", "Time at which to begin: ms since 1970, ISO 8601 or -10m; goes before the next two."),
    SparkOption("startingOffsetsByTimestamp", "", "The same by partition, as JSON; goes before startingOffsets."),
    SparkOption(
        "startingOffsets",
        "",
        "earliest, latest, JSON by partition (-2 earliest, -1 latest), committed (what group.id has read), -10m or ISO 8601 "
        "(records from that time on) or -1000 (the newest records of each partition). Without it a stream begins at latest, a "
        "batch at earliest. A query that has a checkpoint goes on there.",
    ),
    SparkOption("startingOffsetsByTimestampStrategy", "error", "What a time after the last record means: error, or latest."),
    SparkOption("endingTimestamp", "", "Batch only: time at which to end, likewise."),
    SparkOption("endingOffsetsByTimestamp", "", "Batch only: the same by partition, as JSON."),
    SparkOption("endingOffsets", "latest", "Batch only: latest, JSON by partition (-1 latest), or a time or count as above."),
    SparkOption(
        "where",
        "",
        "Only these rows: comparisons of topic, partition, offset and timestamp with =, <, <=, >, >=, IN and BETWEEN, joined by "
        "AND. They cut what is fetched.",
    ),
    SparkOption(
        "failOnDataLoss",
        "true",
        "Whether records that are gone, or damaged, end the query; if not, the read goes on behind them with a warning.",
    ),
    SparkOption("includeHeaders", "false", "Whether rows have a column headers."),
    SparkOption("maxOffsetsPerTrigger", "", "Most offsets of one micro-batch, shared out among the partitions."),
    SparkOption(
        "maxBytesPerTrigger",
        "",
        "Most bytes of one micro-batch, as they lie on the broker's disk, shared out among the partitions in whole record batches; "
        "at least one of each partition.",
    ),
    SparkOption("minOffsetsPerTrigger", "", "A micro-batch waits until there are so many offsets, or for maxTriggerDelay."),
    SparkOption("maxTriggerDelay", "15m", "Longest wait for minOffsetsPerTrigger."),
    SparkOption("minPartitions", "", "About so many tasks: large ranges are read in more pieces."),
    SparkOption("maxRecordsPerPartition", "", "Most offsets of one task: larger ranges are read in more pieces."),
    SparkOption("fetchOffset.numRetries", "", _NO_EFFECT + "calls are tried for default.api.timeout.ms."),
    SparkOption("fetchOffset.retryIntervalMs", "", _NO_EFFECT + "retries wait retry.backoff.ms and longer."),
    SparkOption("kafkaConsumer.pollTimeoutMs", "", _NO_EFFECT + "reads are tried for default.api.timeout.ms."),
    SparkOption(
        "groupIdPrefix",
        "spark-brokerd",
        "Streams: positions are recorded as a group of this name, a hyphen and an id that the checkpoint keeps.",
    ),
    SparkOption(
        "group.id",
        "",
        "Streams: positions are recorded as this group; goes before groupIdPrefix. One query a name. "
        "All reads: whose offsets startingOffsets=committed means.",
    ),
)
SINK_OPTIONS = (
    SparkOption("topic", "", "Topic to write to; goes before the column topic. It must exist."),
    SparkOption("includeHeaders", "true", "If false, a column headers is an error; without such a column it has no effect."),
    SparkOption(
        "delivery",
        "exactly_once",
        "exactly_once: the rows of a micro-batch or batch write become visible together, once; at_least_once: each row as soon as "
        "it is written, and again if Spark runs its task again.",
    ),
    SparkOption("txnAppId", "", "Batch writes: with txnVersion, makes a repeated write of the same version write nothing."),
    SparkOption("txnVersion", "", "Batch writes: whole number from 0 that rises from write to write of one txnAppId."),
    SparkOption(
        "txnLabel",
        "",
        "Tells writes of one micro-batch inside foreachBatch apart; the topic unless it is set. A new label writes the rows again.",
    ),
    SparkOption(
        "failOnReplayMismatch",
        "true",
        "Whether a micro-batch that was committed and comes again with other rows ends the query; if not, it is passed over with "
        "a warning, for queries that are not deterministic.",
    ),
)
