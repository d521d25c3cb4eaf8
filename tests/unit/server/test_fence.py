"""The hello fence: the newest incarnation of each producer instance, remembered after its last stream has ended."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from brokerd.errors import InvalidRequestError, ResourceExhaustedError
from brokerd.server.limits.fence import REMEMBERED_MS, Instance, InstanceFence

A, B = b"a" * 16, b"b" * 16
P = "etl"


def test_only_the_newest_incarnation_is_current() -> None:
    fence = InstanceFence(max_instances=10)
    instance = fence.hello(P, A, 1, now_ms=0)
    assert instance.incarnation == 1
    assert fence.hello(P, A, 5, now_ms=0) is instance
    assert fence.hello(P, B, 1, now_ms=0) is not instance
    assert instance.incarnation == 5, "the older stream sees that it is no longer current"


@pytest.mark.parametrize("incarnation", [1, 4, 5])
def test_an_incarnation_that_does_not_rise_is_refused_and_changes_nothing(incarnation: int) -> None:
    fence = InstanceFence(max_instances=10)
    instance = fence.hello(P, A, 5, now_ms=0)
    with pytest.raises(InvalidRequestError, match=f"incarnation is {incarnation}, but 5"):
        fence.hello(P, A, incarnation, now_ms=0)
    assert instance.incarnation == 5
    fence.goodbye(instance, now_ms=0)
    assert len(fence) == 1


def test_too_many_instances_are_refused_rather_than_forgotten() -> None:
    fence = InstanceFence(max_instances=3)
    fence.goodbye(fence.hello(P, A, 1, now_ms=0), now_ms=0)
    fence.hello(P, B, 1, now_ms=0)
    with pytest.raises(ResourceExhaustedError, match=r"max\.producer\.instances"):
        fence.hello(P, b"c" * 16, 1, now_ms=1)
    fence.goodbye(fence.hello(P, A, 2, now_ms=1), now_ms=1)
    fence.hello(P, b"c" * 16, 1, now_ms=1 + REMEMBERED_MS)
    assert len(fence) == 2


def test_it_agrees_with_a_fence_that_never_forgets_within_its_time() -> None:
    rng = random.Random(5)
    fence = InstanceFence(max_instances=100)
    highest: dict[bytes, int] = {}
    open_streams: list[Instance] = []
    last_seen: dict[bytes, int] = {}
    now_ms = 0
    for _ in range(5_000):
        now_ms += rng.choice((0, 1, 1_000, REMEMBERED_MS // 2, REMEMBERED_MS - 1))
        instance_id = bytes([rng.randrange(8)]) * 16
        if open_streams and rng.random() < 0.5:
            closed = open_streams.pop(rng.randrange(len(open_streams)))
            fence.goodbye(closed, now_ms=now_ms)
            last_seen[closed.key[1]] = now_ms
            continue
        is_open = any(instance.key == (P, instance_id) for instance in open_streams)
        if not is_open and last_seen.get(instance_id, now_ms) + REMEMBERED_MS <= now_ms:
            highest.pop(instance_id, None)
        incarnation = rng.randrange(1, 30)
        try:
            instance = fence.hello(P, instance_id, incarnation, now_ms=now_ms)
        except InvalidRequestError:
            assert incarnation <= highest[instance_id]
        else:
            assert incarnation > highest.get(instance_id, 0)
            highest[instance_id] = incarnation
            open_streams.append(instance)
        assert len(fence) <= 8


def test_nobody_fills_the_table_or_fences_another_s_instance() -> None:
    fence = InstanceFence(max_instances=1_000)
    instances: dict[str, list[Instance]] = defaultdict(list)

    def fill(principal: str) -> int:
        for number in range(1_001):
            try:
                instances[principal].append(fence.hello(principal, number.to_bytes(16, "big"), 1, now_ms=0))
            except ResourceExhaustedError:
                break
        with pytest.raises(ResourceExhaustedError, match=f"{number} of them of principal '{principal}'"):
            fence.hello(principal, A, 1, now_ms=0)
        return number

    assert [fill(name) for name in ("greedy", "second", "third", "fourth")] == [800, 160, 32, 6]
    fence.hello("honest", A, 1, now_ms=0)
    fence.hello("greedy", (5).to_bytes(16, "big"), 9, now_ms=0)
    assert instances["second"][5].incarnation == 1
    for instance in instances["greedy"]:
        fence.goodbye(instance, now_ms=0)
    for number in range(20):
        fence.hello("honest", number.to_bytes(16, "big"), 1, now_ms=REMEMBERED_MS)
