"""Requests between nodes: one that violates the contract is refused before it has any effect."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace
from typing import cast

import pytest
from google.protobuf.message import Message

from brokerd.errors import ErrorCode
from brokerd.internode.v1 import internode_pb2
from brokerd.internode.v1.internode_pb2 import (
    CopyEndRequest,
    FreezeMembersRequest,
    HangingPartitionsRequest,
    OpenDataRequest,
    OpenMembersRequest,
    Partition,
    PreparedHoldsRequest,
    ReleaseRequest,
    VerifyMembersRequest,
    WriteMarkersRequest,
)
from brokerd.server.broker import BrokerParts
from brokerd.server.cluster.calls import TOKEN
from brokerd.server.cluster.node import ClusterNode
from brokerd.server.coordinator.members import IDS_MAX, PARTITIONS_MAX, SETTLED_MAX, VERIFIED_MAX
from brokerd.server.failures import MalformedError
from brokerd.server.internode import METHODS, InternodeService
from brokerd.server.security.audit import Audit
from brokerd.server.security.authenticator import UnauthenticatedError
from brokerd.server.streams import Context
from brokerd.wire.v1.coordinator_log_pb2 import HeldBack
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.inner_broker import TransactionBroker, running

PLACE = Partition(topic_id=bytes(16), partition=0)
SHORT = Partition(topic_id=b"short", partition=0)
HOLD = HeldBack(topic_id=bytes(16), partition=0, first_offset=-1)
BELOW = HeldBack(topic_id=bytes(16), partition=0, first_offset=-2)
LONG = "x" * 250


async def answered(broker: TransactionBroker, request: Message) -> Message:
    """One node's response. Raises MalformedError."""
    return await METHODS[type(request).__name__.removesuffix("Request")].handle(broker.broker, request)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (VerifyMembersRequest(producer_ids=[-1]), "producer_ids"),
        (VerifyMembersRequest(producer_ids=range(VERIFIED_MAX + 1)), "producer_ids"),
        (FreezeMembersRequest(coordinator_epoch=-1), "coordinator_epoch"),
        (FreezeMembersRequest(producer_ids=range(IDS_MAX + 1)), "producer_ids"),
        (FreezeMembersRequest(partitions=[SHORT]), "partitions.topic_id"),
        (FreezeMembersRequest(partitions=[PLACE] * (PARTITIONS_MAX + 1)), "partitions"),
        (FreezeMembersRequest(after=SHORT), "after.topic_id"),
        (WriteMarkersRequest(coordinator_epoch=-1), "coordinator_epoch"),
        (WriteMarkersRequest(transactional_id=LONG), "transactional_id"),
        (WriteMarkersRequest(txn_version=-2), "txn_version"),
        (WriteMarkersRequest(committed_producer_ids=[-1]), "committed_producer_ids"),
        (WriteMarkersRequest(aborted_producer_ids=[-1]), "aborted_producer_ids"),
        (WriteMarkersRequest(partitions=[HOLD] * (PARTITIONS_MAX + 1)), "partitions"),
        (WriteMarkersRequest(partitions=[BELOW]), "partitions.first_offset"),
        (WriteMarkersRequest(committed_producer_ids=[1]), "partitions"),
        (ReleaseRequest(coordinator_epoch=-1, transactional_id="x"), "coordinator_epoch"),
        (ReleaseRequest(), "transactional_id"),
        (ReleaseRequest(transactional_id="x", txn_version=-1), "txn_version"),
        (OpenMembersRequest(coordinator_epoch=-1), "coordinator_epoch"),
        (OpenMembersRequest(after_producer_id=-2), "after_producer_id"),
        (OpenDataRequest(coordinator_epoch=-1), "coordinator_epoch"),
        (OpenDataRequest(producer_ids=[-1]), "producer_ids"),
        (OpenDataRequest(after=SHORT), "after.topic_id"),
        (HangingPartitionsRequest(coordinator_epoch=-1), "coordinator_epoch"),
        (HangingPartitionsRequest(after=SHORT), "after.topic_id"),
        (PreparedHoldsRequest(partitions=[SHORT]), "partitions.topic_id"),
        (PreparedHoldsRequest(partitions=[PLACE] * (SETTLED_MAX + 1)), "partitions"),
        (PreparedHoldsRequest(after_transactional_id=LONG), "after_transactional_id"),
        (CopyEndRequest(partition=SHORT), "partition.topic_id"),
        (CopyEndRequest(), "partition.topic_id"),
    ],
)
async def test_what_violates_the_contract_is_malformed(request_: Message, field: str) -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        with pytest.raises(MalformedError, match=re.escape(f"{field}:")):
            await answered(broker, request_)


def test_the_table_is_the_services() -> None:
    service = internode_pb2.DESCRIPTOR.services_by_name["Internode"]
    unary = [method for method in service.methods if method.name != "Replicate"]
    assert list(METHODS) == [method.name for method in unary]
    for method in unary:
        served = METHODS[method.name]
        assert served.request.DESCRIPTOR is method.input_type
        assert served.response.DESCRIPTOR is method.output_type


async def test_failures_stand_in_the_response() -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        response = await answered(broker, FreezeMembersRequest(partitions=[PLACE]))
        assert response.error.code == ErrorCode.UNKNOWN_TOPIC_ID  # type: ignore[attr-defined]
        broker.broker.is_stopping = True
        response = await answered(broker, OpenMembersRequest(after_producer_id=-1))
        assert response.error.code == ErrorCode.NOT_READY  # type: ignore[attr-defined]


def test_a_wrong_token_alarms_unless_this_node_has_just_started(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    broker = SimpleNamespace(clock=clock, audit=Audit(clock))
    service = InternodeService(cast("BrokerParts", broker), cast("ClusterNode", SimpleNamespace(token="new")))

    def told(host: str, token: str | None) -> list[tuple[str, bool]]:
        caplog.clear()
        metadata = () if token is None else ((TOKEN, token),)
        context = SimpleNamespace(invocation_metadata=lambda: metadata, peer=lambda: f"ipv4:{host}:4711")
        with pytest.raises(UnauthenticatedError):
            service._check_token(cast("Context", context))
        return [(record.levelname, host in record.getMessage()) for record in caplog.records]

    assert told("10.0.0.1", "old") == []
    assert told("10.0.0.2", None) == [("WARNING", True)]
    clock.advance(60_000)
    assert told("10.0.0.1", "old") == [("WARNING", True)]
