"""What a leader writes to the coordination store, and when it stops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerd.cluster.image import ClusterImage
from brokerd.cluster.keys import Keys, PartitionEntry
from brokerd.errors import CoordinationError
from brokerd.ids import TopicIdPartition
from brokerd.replication.leader import Proposal
from brokerd.server.replication import leading


@pytest.mark.parametrize("is_fate_unknown", [True, False])
async def test_a_store_that_does_not_answer_ends_a_round(monkeypatch: pytest.MonkeyPatch, is_fate_unknown: bool) -> None:
    """Each piece would wait for seconds, and meanwhile no partition would learn whether it is cut off."""
    monkeypatch.setattr(leading, "_PROPOSALS_MAX", 1)
    monkeypatch.setattr(leading, "_INTERVAL_S", 0)
    asked, given_up = list[Any](), list[Proposal]()

    async def silent(compares: Any, *_rest: Any, **_named: Any) -> int | None:
        asked.append(compares)
        raise CoordinationError("no answer", is_fate_unknown=is_fate_unknown)

    client: Any = SimpleNamespace(transact=silent, histories=0)
    membership: Any = SimpleNamespace(image=ClusterImage(Keys("test")))
    here = leading.Leading(client, membership, cast("Any", ()), 10_000, cast("Any", None))
    due = {TopicIdPartition(bytes(16), number): Proposal(PartitionEntry((1,), (), 1, 1, 1), number) for number in range(3)}
    here._led.update(dict.fromkeys(due, cast("Any", SimpleNamespace(given_up=given_up.append))))
    await here._write(due)
    assert len(asked) == 1
    assert {one.mod_revision for one in given_up} == ({1, 2} if is_fate_unknown else {0, 1, 2}), "what was not sent is not counted"
