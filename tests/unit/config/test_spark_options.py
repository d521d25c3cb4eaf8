"""Options of sink and source: every setting of Kafka's clients is accepted, ignored, or refused with a reason. Errors about other
names suggest the nearest valid name, if one is near."""

from __future__ import annotations

import re

import pytest

from brokerd.config.kafka_names import PASSED_OVER, REFUSED
from brokerd.config.spark_options import SINK, SOURCE, Side, parse_count, require_servers, split_options
from brokerd.errors import ConfigError

# All settings of Kafka 4's consumer and producer.
_TEXT = """
acks allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset batch.size bootstrap.servers
buffer.memory check.crcs client.dns.lookup client.id client.rack compression.gzip.level compression.lz4.level
compression.type compression.zstd.level config.providers connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms
enable.auto.commit enable.idempotence enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms
fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms interceptor.classes
internal.leave.group.on.close internal.throw.on.fetch.stable.offset.unsupported isolation.level key.deserializer
key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms
max.poll.records max.request.size metadata.max.age.ms metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms
metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms
partition.assignment.strategy partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
partitioner.ignore.keys receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries
retry.backoff.max.ms retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.service.name
sasl.login.callback.handler.class sasl.mechanism sasl.oauthbearer.token.endpoint.url security.protocol security.providers
send.buffer.bytes session.timeout.ms share.acknowledgement.mode socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm
ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key
ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
transaction.timeout.ms transaction.two.phase.commit.enable transactional.id value.deserializer value.serializer
"""
KAFKA_NAMES = _TEXT.split()


@pytest.mark.parametrize("side", [SOURCE, SINK], ids=["source", "sink"])
@pytest.mark.parametrize("name", KAFKA_NAMES)
def test_no_name_of_kafkas_clients_is_unknown_or_taken_for_another(side: Side, name: str) -> None:
    if name in {*SOURCE.settings, *SINK.settings, *SOURCE.own} | PASSED_OVER:
        split = split_options({f"kafka.{name}": "any"}, side)
        assert list(split.settings) == ([name] if name in side.settings else [])
    else:
        with pytest.raises(ConfigError, match=rf"^option 'kafka\.{name}' is not accepted {re.escape(side.where)}: \w"):
            split_options({f"kafka.{name}": "any"}, side)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("kafka.sasl.mechanism", "set auth.token.file, or ssl.certificate.file and ssl.key.file"),
        ("kafka.sasl.jaas.config", "set auth.token.file"),
        ("kafka.ssl.truststore.location", "set ssl.ca.file to trust a broker"),
        ("kafka.ssl.keystore.password", "certificates are PEM files"),
        ("kafka.ssl.enabled.protocols", "TLS is gRPC's own"),
        ("kafka.key.serializer", "keys are written unchanged: cast the key column"),
        ("interceptor.classes", "there are no interceptors"),
        ("kafka.transaction.two.phase.commit.enable", "the broker itself remembers what is committed"),
        ("kafka.partitioner.class", "a column 'partition' chooses the partition of each row"),
    ],
)
def test_what_would_not_hold_here_is_refused_with_what_to_do_instead(name: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        split_options({name: "any"}, SINK)


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("kafka.security.protocol", "SASL_SSL", r"security\.protocol=SASL_SSL is not accepted .*auth\.token\.file"),
        ("security.protocol", "sasl_plaintext", r"a token needs TLS"),
        ("kafka.compression.type", "gzip", r"lz4 \(fast\) and zstd \(small\)"),
    ],
)
def test_values_that_only_kafka_knows_are_refused_with_what_to_do_instead(name: str, value: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        split_options({name: value}, SINK)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kafka.fetch.max.byte", r"did you mean 'kafka\.fetch\.max\.bytes'\?"),
        ("kafka.bootstrap.server", r"did you mean 'kafka\.bootstrap\.servers'\?"),
        ("ssl.ca.fil", r"did you mean 'ssl\.ca\.file'\?"),
        ("startingOffset", r"did you mean 'startingOffsets'\?"),
        ("kafka.zookeeper.connect", r"docs/reference/spark-options\.md lists them all$"),
        ("kafka.log.dirs", r"docs/reference/spark-options\.md lists them all$"),
    ],
)
def test_an_unknown_name_gets_a_near_one_or_none(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=rf"unknown option '{name}' .*{hint}"):
        split_options({name: "1"}, SOURCE)


def test_one_set_of_options_serves_source_and_sink() -> None:
    options = {"kafka.bootstrap.servers": "h:1", "KAFKA.acks": "all", "fetch.max.bytes": "5", "subscribe": "a", "topic": "b"}
    source, sink = split_options(options, SOURCE), split_options(options, SINK)
    assert (source, source.settings) == ({"subscribe": "a"}, {"bootstrap.servers": "h:1", "fetch.max.bytes": "5"})
    assert (sink, sink.settings) == ({"topic": "b"}, {"bootstrap.servers": "h:1", "acks": "all"})


def test_create_table_hands_over_properties_and_each_option_twice() -> None:
    given = {"provider": "brokerd", "owner": "me", "comment": "c", "color": "red", "topic": "t", "option.topic": "t"}
    assert split_options(given, SINK) == {"topic": "t"}
    assert split_options({"provider": "brokerd", "location": "/tmp/x", "topic": "t"}, SINK) == {"topic": "t"}
    with pytest.raises(ConfigError, match="unknown option 'tpoic'"):
        split_options({"provider": "brokerd", "tpoic": "t", "option.tpoic": "t"}, SINK)


@pytest.mark.parametrize("side", [SOURCE, SINK], ids=["source", "sink"])
def test_every_option_is_found_in_the_lower_case_in_which_spark_passes_it(side: Side) -> None:
    assert split_options({name.lower(): "1" for name in side.own}, side) == dict.fromkeys(side.own, "1")


def test_what_spark_and_hive_leave_among_the_options_is_left_out() -> None:
    names = ("path", "checkpointLocation", "queryName", "outputMode", "serialization.format")
    assert split_options(dict.fromkeys(names, "x"), SOURCE) == {}


def test_a_table_without_options_says_where_they_go() -> None:
    with pytest.raises(ConfigError, match=r"after the table's name in WITH \(\.\.\.\)"):
        require_servers({}, SOURCE)


@pytest.mark.parametrize("side", [SOURCE, SINK], ids=["source", "sink"])
@pytest.mark.parametrize("servers", ["localhost", "localhost:abc", "http://127.0.0.1:9192", "a:1;b:2"])
def test_an_address_that_is_none_is_refused_before_anything_connects(side: Side, servers: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers must be host:port, .* not "):
        require_servers({"bootstrap.servers": servers}, side)


@pytest.mark.parametrize("text", ["0", "-1", "1_0", "1.5", "", "٣", "9223372036854775808", "9" * 5_000])
def test_counts_are_whole_positive_numbers_of_64_bits(text: str) -> None:
    with pytest.raises(ConfigError, match="minPartitions must be a whole number between 1 and 9223372036854775807, not"):
        parse_count("minPartitions", text)
    assert parse_count("minPartitions", " +7 ") == 7


def test_nothing_is_both_passed_over_and_refused_or_supported() -> None:
    supported = {*SOURCE.settings, *SINK.settings}
    assert not PASSED_OVER & supported
    assert not PASSED_OVER & set(REFUSED)
    assert not supported & set(REFUSED)
