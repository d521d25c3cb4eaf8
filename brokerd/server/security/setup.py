"""Builds the security of one broker out of its settings. Reads files, decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import grpc

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig, listener_of
from brokerd.config.listeners import check_listeners
from brokerd.server.security.access import Topics
from brokerd.server.security.auth_file import load_auth_file
from brokerd.server.security.authenticator import Authenticator
from brokerd.server.security.callers import Callers
from brokerd.server.security.credentials import Certificates
from brokerd.server.security.gate import CountFruitless, Gate, UnknownMethods
from brokerd.server.security.guard import Guard


class Security(NamedTuple):
    """`certificates` None: plaintext."""

    authenticator: Authenticator
    certificates: Certificates | None

    def replace(self, newer: Security) -> None:
        """Takes over what `newer` has read; objects that gRPC and others hold stay the same."""
        self.authenticator.replace(newer.authenticator.identities)
        if self.certificates is not None and newer.certificates is not None:
            self.certificates.replace(newer.certificates)

    def interceptors(self, count_fruitless: CountFruitless) -> tuple[grpc.aio.ServerInterceptor, ...]:
        """What stands before all methods; no gate where everybody may do everything."""
        gates = () if self.authenticator.is_open else (Gate(self.authenticator, count_fruitless),)
        return (UnknownMethods(count_fruitless), *gates)

    def callers(self, config: BrokerConfig, topics: Topics, clock: Clock, free_producer_id: Callable[[], int]) -> Callers:
        """Who calls this broker; once its topics are known. `free_producer_id`: see ProducerOwners."""
        guard = Guard(auto_creates=config.auto_create_topics)
        return Callers(self.authenticator, topics, guard, clock, free_producer_id)


def load_security(config: BrokerConfig) -> Security:
    """Raises ConfigError if the settings contradict each other, or a file cannot be used."""
    listener = listener_of(config)
    check_listeners(listener)
    needs_certificate = config.ssl_client_auth == "required"
    identities = load_auth_file(config.auth_file) if config.auth_file else None
    authenticator = Authenticator(identities, needs_certificate=needs_certificate)
    return Security(
        authenticator,
        Certificates(listener) if listener.is_tls else None,
    )
