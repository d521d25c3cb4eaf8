"""Builds the security of one broker out of its settings. Reads files, decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import grpc

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig, check_listening
from brokerd.server.security.auth_file import load_auth_file
from brokerd.server.security.authenticator import Authenticator
from brokerd.server.security.call_authorizer import CallAuthorizer
from brokerd.server.security.credentials import Certificates
from brokerd.server.security.interceptors import AuthenticationInterceptor
from brokerd.server.security.request_filter import RequestFilter
from brokerd.server.security.topic_authorizer import Topics
from brokerd.server.waiting.turns import Turns


class Security(NamedTuple):
    """`certificates` None: plaintext."""

    authenticator: Authenticator
    certificates: Certificates | None

    def replace(self, newer: Security) -> None:
        """Takes over what `newer` has read; objects that gRPC and others hold stay the same."""
        self.authenticator.replace(newer.authenticator.identities)
        if self.certificates is not None and newer.certificates is not None:
            self.certificates.replace(newer.certificates)

    def interceptors(self) -> tuple[grpc.aio.ServerInterceptor, ...]:
        """The interceptors of all calls: none where everybody may do everything."""
        return () if self.authenticator.is_open else (AuthenticationInterceptor(self.authenticator),)

    def call_authorizer(
        self, config: BrokerConfig, topics: Topics, turns: Turns, clock: Clock, free_producer_id: Callable[[], int]
    ) -> CallAuthorizer:
        """The authorizer of all calls, which needs to know the broker's topics. `free_producer_id`: see ProducerOwners."""
        request_filter = RequestFilter(auto_creates=config.auto_create_topics, turns=turns)
        return CallAuthorizer(self.authenticator, topics, request_filter, clock, free_producer_id)


def load_security(config: BrokerConfig) -> Security:
    """Raises ConfigError if the settings contradict each other, or a file cannot be used."""
    check_listening(config)
    needs_certificate = config.ssl_client_auth == "required"
    identities = load_auth_file(config.auth_file) if config.auth_file else None
    authenticator = Authenticator(identities, needs_certificate=needs_certificate)
    return Security(authenticator, Certificates(config) if config.ssl_certificate_file else None)
