"""`brokerd.Producer`: the producer core over gRPC. Only the wiring lives here."""

from __future__ import annotations

from collections.abc import Mapping

from brokerd.client.broker_client import check_client
from brokerd.client.produce_transport import GrpcProduceTransport
from brokerd.clock import SystemClock
from brokerd.config.client import ProducerConfig
from brokerd.producer.producer import Producer as ProducerOverTransport
from brokerd.producer.rows.arguments import config_of


class Producer(ProducerOverTransport):
    """Writes records to a broker.

        from brokerd import Producer

        with Producer(bootstrap_servers="127.0.0.1:9192") as producer:
            producer.send("events", key="user-1", value=b"...")

    See brokerd.producer.producer.Producer, whose methods these are.
    """

    def __init__(self, config: Mapping[str, object] | ProducerConfig | None = None, **settings: object) -> None:
        config = config_of(config, settings)
        check_client(config)
        super().__init__(config, transport_factory=_grpc_transport, clock=SystemClock())


def _grpc_transport(config: ProducerConfig) -> GrpcProduceTransport:
    return GrpcProduceTransport(config, SystemClock())
