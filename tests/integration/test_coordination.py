"""The client of the coordination store, against the real etcd and the one in memory: both must meet one contract. Faults that the
real one cannot be made to show are tested on the one in memory only."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from unittest import SkipTest

import grpc
import pytest

from brokerd.clock import SystemClock
from brokerd.coordination import client as client_module
from brokerd.coordination.client import Changes, CoordinationClient, KeyValue, Snapshot, grant, watch
from brokerd.coordination.v3.etcd_pb2 import LeaseRevokeRequest, LeaseRevokeResponse, PutRequest, RequestOp
from brokerd.errors import CoordinationError
from brokerd.testing.memory_etcd import OPERATIONS_MAX
from tests.support.certificates import Authority
from tests.support.clock import HastyClock, ManualClock
from tests.support.faulty_etcd import FaultyEtcd
from tests.support.loop import all_wait, one_turn, steady_time
from tests.support.ports import held_port
from tests.support.real_etcd import ETCD, MISSING, RealEtcd, etcd_command

Etcd = FaultyEtcd | RealEtcd
both = pytest.mark.parametrize("kind", ["memory", "real"])
E = TypeVar("E", bound=Etcd)
_LONG_MS = 30_000  # for expected responses on a busy machine
LEASE_S = 5  # for leases that a machine must not lose because it stands still for a while


def etcd_of(kind: str, directory: Path) -> Etcd:
    """A new etcd, in memory or real."""
    if kind == "real" and ETCD is None:
        raise SkipTest(MISSING)
    return FaultyEtcd() if kind == "memory" else RealEtcd(directory)


@asynccontextmanager
async def served(etcd: E) -> AsyncIterator[tuple[E, CoordinationClient]]:
    """A running etcd, and a client of it."""
    async with client_of(etcd) as client:
        await etcd.start()
        try:
            yield etcd, client
        finally:
            await client.close()
            await etcd.stop()


@asynccontextmanager
async def client_of(*etcds: Etcd, timeout_ms: int = _LONG_MS) -> AsyncIterator[CoordinationClient]:
    if isinstance(etcds[0], FaultyEtcd) and not etcds[0].port:
        with held_port() as etcds[0].port:
            pass
    client = CoordinationClient([etcd.address for etcd in etcds], SystemClock(), timeout_ms=timeout_ms)
    try:
        yield client
    finally:
        await client.close()


@contextmanager
def few_attempts(client: CoordinationClient) -> Iterator[None]:
    """The client gives up after two attempts, each of which has the time that a busy machine needs: under a short limit, an attempt
    may end before the response that is the subject of the test."""
    before = client.clock, client.timeout_ms
    client.clock, client.timeout_ms = HastyClock(), 42_000
    try:
        yield
    finally:
        client.clock, client.timeout_ms = before


def names(snapshot: Snapshot) -> list[str]:
    return [item.key for item in snapshot.items]


async def refused(coroutine: Awaitable[object]) -> CoordinationError:
    with pytest.raises(CoordinationError) as raised:
        await coroutine
    return raised.value


@both
async def test_a_change_compares_the_revisions_that_it_rests_on(kind: str, tmp_path: Path) -> None:
    async with served(etcd_of(kind, tmp_path)) as (_, client):
        await client.check()
        first = await client.transact({"/a/x": 0, "/a/y": 0}, {"/a/x": b"1", "/a/y": b"2"})
        assert first is not None
        assert await client.transact({"/a/x": 0}, {"/a/x": b"stolen"}) is None
        assert await client.transact({"/a/x": first, "/a/y": first + 1}, {"/a/x": b"stolen"}) is None
        second = await client.transact({"/a/x": first}, {"/a/x": b"3"}, ["/a/y"])
        assert second == first + 1
        assert await client.transact({}, {"/a0": b"beside", "/b/x": b"beside"}) == first + 2
        assert await client.read("/a/") == Snapshot(first + 2, [KeyValue("/a/x", b"3", first, second)])
        assert await client.transact({"/a/y": 0}, {"/a/y": b"again"}) == first + 3
        assert (await client.read("/a/y")).items == [KeyValue("/a/y", b"again", first + 3, first + 3)]


@both
async def test_a_read_of_many_keys_is_of_one_revision(kind: str, tmp_path: Path) -> None:
    async with served(etcd_of(kind, tmp_path)) as (_, client):
        keys = [f"/k/{number:05}" for number in range(2_500)]
        for at in range(0, len(keys), OPERATIONS_MAX):
            await client.transact({}, dict.fromkeys(keys[at : at + OPERATIONS_MAX], b"v"))
        snapshot = await client.read("/k/")
        assert names(snapshot) == keys
        assert snapshot.revision == snapshot.items[-1].mod_revision


@both
async def test_of_writers_at_once_one_wins(kind: str, tmp_path: Path) -> None:
    async with served(etcd_of(kind, tmp_path)) as (_, client):
        done = await asyncio.gather(*(client.transact({"/name": 0}, {"/name": str(one).encode()}) for one in range(20)))
        winners = [one for one, revision in enumerate(done) if revision is not None]
        assert len(winners) == 1
        assert (await client.read("/name")).items[0].value == str(winners[0]).encode()


@both
async def test_a_transaction_has_a_limit_and_is_refused_whole(kind: str, tmp_path: Path) -> None:
    async with served(etcd_of(kind, tmp_path)) as (_, client):
        keys = [f"/k/{number}" for number in range(OPERATIONS_MAX + 1)]
        error = await refused(client.transact({}, dict.fromkeys(keys, b"v")))
        assert "too many operations in txn request" in error.message
        assert not error.is_fate_unknown
        assert (await client.read("/k/")).items == []
        assert await client.transact(dict.fromkeys(keys[1:], 0), dict.fromkeys(keys[1:], b"v")) is not None


@both
async def test_a_watch_tells_all_from_the_first_key_on(kind: str, tmp_path: Path) -> None:
    async with served(etcd_of(kind, tmp_path)) as (_, client):
        await client.transact({}, {"/w/a": b"1"})
        seen = watch(client, "/w/")
        assert [item.key for item in (await snapshot_of(seen)).items] == ["/w/a"]
        revision = await client.transact({}, {"/w/b": b"2", "/w/c": b"3", "/other": b"-"})
        assert revision is not None
        await client.transact({}, {"/w/a": b"4"}, ["/w/b"])
        events: list[KeyValue | str] = []
        while len(events) < 4:
            events += (await changes_of(seen)).events
        created = [KeyValue("/w/b", b"2", revision, revision), KeyValue("/w/c", b"3", revision, revision)]
        assert sorted(map(str, events[:2])) == sorted(map(str, created))
        assert sorted(event if isinstance(event, str) else event.key for event in events[2:]) == ["/w/a", "/w/b"]
        await seen.aclose()


async def test_an_outage_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(client_module, "_RENEWALS_PER_TTL", 600)  # often, of a lease that outlives any outage here

    async with served(FaultyEtcd()) as (etcd, client):
        client.timeout_ms = 300
        lease, seen = await grant(client, 60), watch(client, "/w/")
        await snapshot_of(seen)
        found = asyncio.create_task(anext(seen))
        failed: Counter[str] = Counter()
        watch_once, renew, often = client_module._watch_once, lease._renew, asyncio.Event()

        def count(what: str) -> None:
            failed[what] += 1
            if len(failed) == 2 and min(failed.values()) > 3:
                often.set()

        def counted_watch(client: CoordinationClient, prefix: str) -> AsyncIterator[Snapshot | Changes]:
            count("watch")
            return watch_once(client, prefix)

        async def counted_renewal() -> bool:
            count("renewal")
            return await renew()

        monkeypatch.setattr(client_module, "_watch_once", counted_watch)
        monkeypatch.setattr(lease, "_renew", counted_renewal)
        for _ in range(2):
            await etcd.stop()
            failed.clear()
            often.clear()
            await often.wait()
            await etcd.start()
            assert isinstance(await found, Snapshot)
            client.timeout_ms = _LONG_MS
            assert await renew()
            client.timeout_ms = 300
            found = asyncio.create_task(anext(seen))
        assert caplog.text.count("the lease is renewed at") == 2
        # In each outage the watch, a failing retry and one that meets the start may log it; no message repeats.
        assert 1 <= caplog.text.count("all keys are read anew") <= 6
        found.cancel()
        await lease.revoke()


async def test_a_watch_that_is_cut_in_the_middle_of_its_past_begins_anew() -> None:
    async with served(FaultyEtcd()) as (etcd, client):
        etcd.watches_end_after = 3
        seen = watch(client, "/w/")
        await snapshot_of(seen)
        for number in range(10):
            await client.transact({}, {f"/w/{number}": b"v"})
        told = [event for _ in range(3) for event in (await changes_of(seen)).events]
        assert [event.key for event in told if isinstance(event, KeyValue)] == [f"/w/{number}" for number in range(3)]
        assert names(await snapshot_of(seen)) == [f"/w/{number}" for number in range(10)]
        await seen.aclose()


async def snapshot_of(seen: AsyncIterator[Snapshot | Changes]) -> Snapshot:
    found = await anext(seen)
    assert isinstance(found, Snapshot)
    return found


async def changes_of(seen: AsyncIterator[Snapshot | Changes]) -> Changes:
    found = await anext(seen)
    assert isinstance(found, Changes)
    return found


@both
async def test_a_watch_begins_anew_after_an_outage(kind: str, tmp_path: Path) -> None:
    async with served(etcd_of(kind, tmp_path)) as (etcd, client):
        seen = watch(client, "/w/")
        await snapshot_of(seen)
        keys: list[str] = []
        for number in range(3):
            await client.transact({}, {f"/w/{number}": b"v"})
            keys.append(f"/w/{number}")
            assert [event.key for event in (await changes_of(seen)).events if isinstance(event, KeyValue)] == keys[-1:]
            await etcd.stop()
            await etcd.start()
            assert names(await snapshot_of(seen)) == keys
        await seen.aclose()


async def test_a_watch_whose_past_is_compacted_begins_anew() -> None:
    async with served(FaultyEtcd()) as (etcd, client):
        await client.transact({}, {"/w/a": b"1", "/w/b": b"1"})
        seen = watch(client, "/w/")
        first = await snapshot_of(seen)
        await etcd.compact(first.revision + 2)
        await client.transact({}, {"/w/c": b"2"}, ["/w/a"])
        await client.transact({}, {"/w/b": b"2"})
        assert [(item.key, item.value) for item in (await snapshot_of(seen)).items] == [("/w/b", b"2"), ("/w/c", b"2")]
        await client.transact({}, {"/w/d": b"3"})
        assert [event.key for event in (await changes_of(seen)).events if isinstance(event, KeyValue)] == ["/w/d"]
        await seen.aclose()


@both
async def test_a_watch_tells_what_its_snapshot_has_not(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(etcd_of(kind, tmp_path)) as (_, client):
        read = client.read

        async def amid_changes(prefix: str, *, is_older_taken: bool) -> Snapshot:
            await client.transact({}, {"/w/a": b"1"})
            found = await read(prefix, is_older_taken=is_older_taken)
            await client.transact({}, {"/w/b": b"1"}, ["/w/a"])
            return found

        monkeypatch.setattr(client, "read", amid_changes)
        seen = watch(client, "/w/")
        assert names(await snapshot_of(seen)) == ["/w/a"]
        told = (await changes_of(seen)).events
        assert sorted(event if isinstance(event, str) else event.key for event in told) == ["/w/a", "/w/b"]
        await seen.aclose()


async def test_a_watch_and_its_snapshot_are_of_one_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store goes back right after the snapshot, and reaches the same revision before the watch continues. Comparing revisions
    cannot detect this."""

    async with served(FaultyEtcd()) as (etcd, client):
        await client.transact({}, {"/w/a": b"1"})
        read = client.read

        async def goes_back_after(prefix: str, *, is_older_taken: bool) -> Snapshot:
            found = await read(prefix, is_older_taken=is_older_taken)
            monkeypatch.setattr(client, "read", read)
            await stop_seen(etcd, client)
            etcd.go_back(found.revision - 1)
            await etcd.put("/w/other", b"1")
            await etcd.start()
            await client.channel().channel_ready()
            return found

        monkeypatch.setattr(client, "read", goes_back_after)
        seen = watch(client, "/w/")
        assert names(await snapshot_of(seen)) == ["/w/a"]
        assert names(await snapshot_of(seen)) == ["/w/other"]
        await seen.aclose()


async def test_a_watch_is_reconciled_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "RECONCILE_MS", 300)

    async with served(FaultyEtcd()) as (etcd, client):
        seen = watch(client, "/w/")
        await snapshot_of(seen)
        etcd.history.clear()
        await client.transact({}, {"/w/a": b"1"})
        etcd.history.clear()  # the watch misses this change
        connection = client.channel()
        found = await anext(seen)
        while isinstance(found, Changes):
            found = await anext(seen)
        assert names(found) == ["/w/a"]
        assert client.channel() is connection  # others use it
        await seen.aclose()


@both
async def test_a_lease_lives_as_long_as_it_is_kept(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_RENEWALS_PER_TTL", 50)

    async with served(etcd_of(kind, tmp_path)) as (_, client):
        lease = await grant(client, LEASE_S)
        await client.transact({}, {"/l/kept": b"v"}, lease_id=lease.id)
        other = await grant(client, LEASE_S)
        await client.transact({}, {"/l/left": b"v"}, lease_id=other.id)
        await other._stop()  # as if its node had died
        assert other.lost.is_set()
        seen = watch(client, "/l/")
        await snapshot_of(seen)
        assert (await changes_of(seen)).events == ["/l/left"]  # after its time, when the other would have expired first
        assert names(await client.read("/l/")) == ["/l/kept"]
        assert not lease.lost.is_set()
        await lease.revoke()
        assert (await client.read("/l/")).items == []
        error = await refused(client.transact({}, {"/l/late": b"v"}, lease_id=lease.id))
        assert "lease not found" in error.message
        assert not error.is_fate_unknown


@both
async def test_a_lease_that_somebody_ended_is_lost(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_RENEWALS_PER_TTL", 600)

    async with served(etcd_of(kind, tmp_path)) as (etcd, client):
        lease = await grant(client, 60)
        async with client_of(etcd) as another:
            await another.repeated(
                "/etcdserverpb.Lease/LeaseRevoke",
                LeaseRevokeRequest(ID=lease.id),
                LeaseRevokeResponse,
            )
        await lease.lost.wait()
        assert client.clock.boot_ms() < lease._good_until_ms, "etcd has said so"


@both
async def test_a_lease_that_cannot_be_renewed_is_lost_in_its_time(kind: str, tmp_path: Path) -> None:
    async with served(etcd_of(kind, tmp_path)) as (etcd, client), steady_time() as client.clock:
        lease = await grant(client, 2)
        await etcd.stop()
        assert not lease.lost.is_set()
        await asyncio.wait_for(lease.lost.wait(), 2.5)


@both
async def test_a_lease_outlives_an_outage_of_etcd(kind: str, tmp_path: Path) -> None:
    async with served(etcd_of(kind, tmp_path)) as (etcd, client):
        lease = await grant(client, LEASE_S)
        await client.transact({}, {"/l/kept": b"v"}, lease_id=lease.id)
        longer = await grant(client, LEASE_S + 1)
        await etcd.stop()
        await lease.lost.wait()
        await longer.lost.wait()
        await etcd.start()
        assert names(await client.read("/l/")) == ["/l/kept"]
        seen = watch(client, "/l/")
        await snapshot_of(seen)
        assert (await changes_of(seen)).events == ["/l/kept"]  # its time to live starts again, and is not renewed
        await seen.aclose()


async def test_a_lease_whose_renewals_nobody_answers_is_lost() -> None:
    async with served(FaultyEtcd()) as (etcd, client), steady_time() as client.clock:
        lease = await grant(client, 1)
        await etcd.renewed.wait()
        etcd.renews = False
        await asyncio.wait_for(lease.lost.wait(), 1.5)


async def test_a_lease_counts_the_time_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(FaultyEtcd()) as (etcd, client), steady_time() as clock:
        client.clock, awake_ms = clock, clock.boot_ms
        lease = await grant(client, 3)
        await etcd.stop()
        monkeypatch.setattr(clock, "boot_ms", lambda: awake_ms() + 60_000)
        await asyncio.wait_for(lease.lost.wait(), 2.5)  # after the first failed renewal


async def test_members_that_hang_do_not_cost_the_lease() -> None:
    async with served(FaultyEtcd()) as (etcd, _):
        twins = [FaultyEtcd(), FaultyEtcd()]
        for twin in twins:
            twin.leases = etcd.leases
            await twin.start()
        etcd.renews = twins[0].renews = False
        async with client_of(etcd, *twins) as client, steady_time() as client.clock:
            lease = await grant(client, 4)
            lost, renewed = (asyncio.create_task(event.wait()) for event in (lease.lost, twins[1].renewed))
            await asyncio.wait([lost, renewed], return_when=asyncio.FIRST_COMPLETED)
            assert (lost.done(), renewed.done()) == (False, True)
            await lease.revoke()
            await lost
        for twin in twins:
            await twin.stop()


@both
async def test_who_does_not_answer_is_named(kind: str, tmp_path: Path) -> None:
    async with served(etcd_of(kind, tmp_path)) as (etcd, _):
        await etcd.stop()
        async with client_of(etcd, timeout_ms=600) as client:
            for attempt in (client.check(), client.read("/"), client.transact({}, {"/a": b"1"}), grant(client, 2)):
                error = await refused(attempt)
                assert error.message.startswith(f"etcd at {etcd.address} does not answer (")
                assert not error.is_fate_unknown
            await etcd.start()
            client.timeout_ms = _LONG_MS
            await client.check()
            assert (await client.read("/")).items == []


async def test_another_endpoint_takes_over() -> None:
    async with served(FaultyEtcd()) as (etcd, _):
        twin = FaultyEtcd()
        twin.keys, twin.history, twin._changed = etcd.keys, etcd.history, etcd._changed
        await twin.start()
        with held_port() as dead_port:
            client = CoordinationClient([f"127.0.0.1:{dead_port}", etcd.address, twin.address], SystemClock())
            assert await client.transact({}, {"/a": b"1"}) == 2
            twin.revision = 2
            await etcd.stop()
            assert names(await client.read("/")) == ["/a"]
            assert await client.transact({}, {"/b": b"1"}) == 3
            await client.close()
        await twin.stop()


async def test_an_answer_that_is_lost_leaves_the_fate_unknown() -> None:
    async with served(FaultyEtcd()) as (etcd, client):
        assert await client.get("/a") is None
        etcd.loses_answers = True
        error = await refused(client.transact({}, {"/a": b"1"}))
        assert error.is_fate_unknown
        etcd.loses_answers = False
        assert [(item.key, item.mod_revision) for item in (await client.read("/")).items] == [("/a", 2)]  # applied once


async def test_a_connection_that_one_call_finds_lost_is_lost_for_all() -> None:
    async with served(FaultyEtcd()) as (etcd, client):
        seen = watch(client, "/w/")
        await snapshot_of(seen)
        anew = asyncio.create_task(snapshot_of(seen))
        await client.transact({}, {"/other": b"1"})
        etcd.loses_answers = True
        reads = asyncio.gather(*(client.read("/w/") for _ in range(5)), return_exceptions=True)
        await refused(client.transact({}, {"/other": b"2"}))
        etcd.loses_answers = False
        assert [isinstance(found, Snapshot) for found in await reads] == [True] * 5
        assert (await anew).items == []
        await seen.aclose()


async def test_a_stream_whose_connection_is_closed_as_it_begins_does_not_hang() -> None:
    async with served(FaultyEtcd()) as (etcd, _), client_of(etcd, timeout_ms=2_000) as client, steady_time() as client.clock:
        seen, lease = watch(client, "/w/"), await grant(client, 2)
        await snapshot_of(seen)
        anew, renewal = asyncio.create_task(snapshot_of(seen)), asyncio.create_task(lease._renew())
        read = asyncio.create_task(client.read("/w/"))
        await one_turn()
        with pytest.raises(CoordinationError, match="lost"):
            async with client.using(client.channel()):
                raise CoordinationError("lost", is_fate_unknown=True)
        assert await renewal
        assert (await read).items == []
        assert (await anew).items == []
        await seen.aclose()
        await lease.revoke()


async def test_a_cancellation_is_not_lost_to_the_error_of_a_stream_that_ends_at_the_same_moment() -> None:
    """gRPC raises the stream's error alone. A node that stops would go on watching."""
    async with served(FaultyEtcd()) as (etcd, _), client_of(etcd) as client:

        async def watched() -> None:
            async with client.using(client.channel()):
                with suppress(asyncio.CancelledError):
                    await asyncio.get_running_loop().create_future()
                raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "gone")

        task = asyncio.create_task(watched())
        await one_turn()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_task_that_cleans_up_after_its_cancellation_hears_of_a_lost_connection() -> None:
    """As a node that stops while it registers: it revokes its lease, at another endpoint if this one is lost."""
    async with served(FaultyEtcd()) as (etcd, _), client_of(etcd) as client:

        async def cleaned_up() -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()
            async with client.using(client.channel()):
                raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "gone")

        task = asyncio.create_task(cleaned_up())
        await one_turn()
        task.cancel()
        with pytest.raises(CoordinationError, match="does not answer"):
            await task


async def test_an_older_term_and_another_cluster_are_refused() -> None:
    async with served(FaultyEtcd()) as (etcd, _), client_of(etcd) as client:
        await client.check()
        etcd.term = 1
        with few_attempts(client):
            assert "answers in term 1, after 2: it is cut off, or was restored" in (await refused(client.read("/"))).message
            etcd.term, etcd.cluster_id = 3, 8
            error = await refused(client.read("/"))
        assert "belongs to another etcd cluster than before" in error.message
        etcd.cluster_id = 7
        await client.read("/")


async def test_a_member_without_a_leader_is_passed_by_and_its_term_forgotten() -> None:
    async with served(FaultyEtcd()) as (etcd, _):
        cut_off = FaultyEtcd(term=50)
        cut_off.has_leader = False
        await cut_off.start()
        async with client_of(cut_off, etcd) as client:
            assert await client.transact({}, {"/a": b"1"}) == 2
            assert names(await client.read("/")) == ["/a"]
            assert not cut_off.keys
        async with client_of(cut_off) as client:
            client.clock = HastyClock()
            assert "does not answer (etcdserver: no leader)" in (await refused(client.check())).message
        await cut_off.stop()


async def test_an_old_version_is_refused() -> None:
    async with served(FaultyEtcd()) as (etcd, client):
        for version in ("3.3.27", "2.0", "nonsense"):
            etcd.version = version
            assert f"is version '{version}': brokerd needs 3.4 or newer" in (await refused(client.check())).message
        etcd.version = "3.10.0"
        await client.check()


async def test_a_value_of_hostile_size_is_refused() -> None:
    async with served(FaultyEtcd()) as (etcd, client):
        await client.transact({}, {"/a": b"1"})
        etcd.keys[b"/a"].value = bytes(40_000_000)
        assert "refused the request (" in (await refused(client.read("/"))).message


async def test_a_last_attempt_with_little_time_does_not_hide_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, causes = ManualClock(), ["it has no leader", "no response in time"]
    client = CoordinationClient(["127.0.0.1:1"], clock, timeout_ms=600)

    async def call(*_asked: object, is_checked: bool) -> None:
        clock.advance(450)
        raise CoordinationError(causes.pop(0), is_fate_unknown=True)

    monkeypatch.setattr(client, "_call", call)
    assert (await refused(client.check())).message == "it has no leader"
    assert not causes
    await client.close()


async def test_large_values_are_read_in_smaller_pages() -> None:
    async with served(FaultyEtcd()) as (etcd, client):
        for number in range(100):
            await etcd.put(f"/w/{number:02}", bytes(500_000))
        snapshot = await client.read("/w/")
        assert names(snapshot) == [f"/w/{number:02}" for number in range(100)]
        assert {len(item.value) for item in snapshot.items} == {500_000}


async def test_a_watch_that_is_refused_says_so_and_begins_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_module, "_REFUSED_MS", 10)

    async with served(FaultyEtcd()) as (etcd, client):
        seen = watch(client, "/w/")
        await snapshot_of(seen)
        puts = [PutRequest(key=b"/w/%d" % number, value=bytes(500_000)) for number in range(100)]
        await etcd._change([RequestOp(request_put=put) for put in puts])  # more changes than fit into a message
        etcd.refuses = "permission denied"  # for the next watch
        assert len((await snapshot_of(seen)).items) == 100
        assert "refused the request (" in caplog.text
        await snapshot_of(seen)
        assert f"etcd at {etcd.address} refused a watch (permission denied): all keys are read anew" in caplog.text
        etcd.refuses = ""
        await snapshot_of(seen)
        await client.transact({}, {"/w/a": b"1"})
        assert [event.key for event in (await changes_of(seen)).events if isinstance(event, KeyValue)] == ["/w/a"]
        await seen.aclose()


async def stop_seen(etcd: FaultyEtcd, client: CoordinationClient) -> None:
    """Stops etcd and waits until the client has noticed the lost connection. A real etcd does not restart faster."""
    connection = client.channel()
    await etcd.stop()
    await connection.wait_for_state_change(grpc.ChannelConnectivity.READY)


async def goes_back(etcd: FaultyEtcd, client: CoordinationClient, revision: int) -> None:
    """Stops etcd, drops the changes after `revision`, and restarts it."""
    await stop_seen(etcd, client)
    etcd.go_back(revision)
    await etcd.start()


async def test_a_store_that_has_gone_back_is_refused_and_makes_no_change() -> None:
    """Its members have lost their last changes and held an election since, so the term does not reveal it."""

    async with served(FaultyEtcd()) as (etcd, client):
        for number in range(5):
            await client.transact({}, {"/w/a": b"%d" % number})
        assert etcd.revision == 6
        await goes_back(etcd, client, 4)
        for call in (client.transact({"/w/a": 4}, {"/w/a": b"1"}), client.get("/w/a"), client.read("/w/")):
            with few_attempts(client):
                error = await refused(call)
            assert "is at revision 4, after 6: it was emptied, restored from a backup, or has lost its last" in error.message
        found = await client.read("/w/", is_older_taken=True)
        assert found == Snapshot(4, [KeyValue("/w/a", b"2", 2, 4)], has_gone_back=True)
        client.believe(found.revision)
        assert await client.transact({"/w/a": 4}, {"/w/a": b"1"}) == 5


@pytest.mark.parametrize("first", ["lease", "watch", "check"])
async def test_a_store_that_has_gone_back_makes_no_change_whoever_connects_first(first: str) -> None:
    async with served(FaultyEtcd()) as (etcd, client):
        lease = await grant(client, 30)
        for number in range(5):
            await client.transact({}, {"/w/a": b"%d" % number})
        await goes_back(etcd, client, 4)
        if first == "lease":
            while lease._is_late or client._channel is None:
                await lease._renew()
        elif first == "watch":
            assert (await client.read("/w/", is_older_taken=True)).revision == 4
        else:
            await client.check()
        with few_attempts(client):
            error = await refused(client.transact({"/w/a": 4}, {"/w/a": b"1"}))
        assert (error.is_fate_unknown, etcd.revision) == (False, 4)
        await lease.revoke()


async def test_a_change_that_waits_for_a_connection_is_not_made_in_another_history() -> None:
    async with served(FaultyEtcd()) as (etcd, client):
        for number in range(5):
            await client.transact({}, {"/w/a": b"%d" % number})
        await stop_seen(etcd, client)
        etcd.go_back(4)
        change = asyncio.create_task(client.transact({"/w/a": 4}, {"/w/a": b"old history"}))
        await one_turn()
        client.believe(4)
        await etcd.start()
        error = await refused(change)
        assert "has gone back since this change was decided: nothing was changed" in error.message
        assert (error.is_fate_unknown, etcd.revision) == (False, 4)


async def test_an_answer_of_before_an_older_store_was_believed_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its revision would make the client refuse the older store, and its change may be lost."""

    async with served(FaultyEtcd()) as (_, client):
        await client.transact({}, {"/w/a": b"1"})
        seen = client.seen

        def believe(response: object) -> None:
            seen(response)
            client.believe(1)

        monkeypatch.setattr(client, "seen", believe)
        with pytest.raises(CoordinationError, match="has gone back while it was asked") as refused:
            await client.transact({}, {"/w/a": b"2"})
        assert refused.value.is_fate_unknown


async def test_a_refused_revision_leaves_the_connection_to_who_reads_all_anew() -> None:
    """Otherwise repeatedly refused calls would keep a snapshot of many pages from completing."""

    async with served(FaultyEtcd()) as (_, client):
        await client.transact({}, {"/w/a": b"1"})
        client.has_reached(100)
        channel = client.channel()
        with few_attempts(client), pytest.raises(CoordinationError, match="is at revision 2, after 100"):
            await client.get("/w/a")
        assert client.channel() is channel


async def test_a_change_goes_out_on_the_connection_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(FaultyEtcd()) as (_, client):
        get, asked = client.get, list[str]()

        async def closed_once(key: str) -> KeyValue | None:
            found = await get(key)
            asked.append(key)
            if len(asked) == 1:
                await client.close()
            return found

        monkeypatch.setattr(client, "get", closed_once)
        assert await client.transact({}, {"/w/a": b"1"}) is not None
        assert asked == ["/w/a", "/w/a"]


async def test_pages_of_two_connections_are_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may have gone back between the pages, and reached the same revision again."""

    async with served(FaultyEtcd()) as (_, client):
        await client.transact({}, {f"/w/{number}": b"v" for number in range(3)})
        monkeypatch.setattr("brokerd.coordination.client._PAGE", 1)
        repeated, pages = client.repeated, 0

        async def page(*asked: object, **named: object) -> object:
            nonlocal pages
            pages += 1
            if pages == 2:
                await client.close()
            return await repeated(*asked, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(client, "repeated", page)
        assert names(await client.read("/w/")) == ["/w/0", "/w/1", "/w/2"]
        assert pages == 2 + 3, "from the first page on"


async def test_what_a_watch_has_told_is_known() -> None:
    async with served(FaultyEtcd()) as (etcd, client):
        seen = watch(client, "/w/")
        await snapshot_of(seen)
        await etcd.put("/w/a", b"1")
        revision = (await changes_of(seen)).revision
        await goes_back(etcd, client, revision - 1)
        with few_attempts(client):
            assert f"after {revision}: it was emptied" in (await refused(client.get("/w/a"))).message
        assert (await snapshot_of(seen)).revision == revision - 1
        await seen.aclose()


async def test_a_watch_that_ends_at_once_is_not_asked_for_at_once_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    pauses: list[float] = []

    async def pause(delay_s: float) -> None:
        pauses.append(delay_s)

    async with served(FaultyEtcd()) as (etcd, client):
        etcd.ends_watches = True
        seen = watch(client, "/w/")
        monkeypatch.setattr("brokerd.coordination.client.asyncio.sleep", pause)
        for _ in range(5):
            await snapshot_of(seen)
        assert pauses == [1.0] * 4
        assert caplog.text.count("ended a watch: all keys are read anew") == 1
        await seen.aclose()


async def test_the_change_that_crosses_etcds_quota_may_have_been_made() -> None:
    """etcd applies this change, but responds as to all later ones, which it refuses."""

    async with served(FaultyEtcd()) as (etcd, client):
        etcd.crosses_quota = True
        with pytest.raises(CoordinationError, match="space exceeded") as raised:
            await client.transact({}, {"/w/a": b"1"})
        assert raised.value.is_fate_unknown
        assert await client.get("/w/a") is not None
        etcd.refuses = "permission denied"
        with pytest.raises(CoordinationError) as raised:
            await client.transact({}, {"/w/b": b"1"})
        assert not raised.value.is_fate_unknown


def test_tls_with_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued, node = authority.issue("etcd", "127.0.0.1"), authority.issue("node-1")

    def read(path: str) -> bytes:
        return Path(path).read_bytes()

    async def scenario() -> None:
        etcd = FaultyEtcd()
        pair = [(read(issued.key_file), read(issued.certificate_file))]
        await etcd.start(grpc.ssl_server_credentials(pair, read(authority.ca_file), require_client_auth=True))
        right = grpc.ssl_channel_credentials(read(authority.ca_file), read(node.key_file), read(node.certificate_file))
        stranger = Authority(tmp_path, "stranger")
        wrong = {
            "": grpc.ssl_channel_credentials(read(authority.ca_file)),
            "its certificate is not trusted": grpc.ssl_channel_credentials(read(stranger.ca_file)),
            "does not answer": None,
        }
        clients = [
            CoordinationClient([etcd.address], HastyClock(), credentials=credentials, timeout_ms=_LONG_MS)
            for credentials in wrong.values()
        ]
        errors = await asyncio.gather(*(refused(client.check()) for client in clients))
        for text, client, error in zip(wrong, clients, errors, strict=True):
            assert error.message.startswith(f"etcd at {etcd.address} ")
            assert text in error.message
            await client.close()
        client = CoordinationClient([etcd.address], SystemClock(), credentials=right, timeout_ms=_LONG_MS)
        await client.check()
        await client.close()
        await etcd.stop()

    asyncio.run(scenario())


def test_a_real_etcd_that_wants_a_certificate_is_known_by_how_it_hangs_up(tmp_path: Path) -> None:
    if ETCD is None:
        raise SkipTest(MISSING)
    authority = Authority(tmp_path)
    issued = authority.issue("etcd", "127.0.0.1")
    with held_port() as port, held_port() as peer_port:
        address = f"127.0.0.1:{port}"
        command = etcd_command(tmp_path / "etcd", "127.0.0.1", port, peer_port)
    command = [word.replace(f"http://{address}", f"https://{address}") for word in command]
    command += [f"--cert-file={issued.certificate_file}", f"--key-file={issued.key_file}"]
    command += ["--client-cert-auth", f"--trusted-ca-file={authority.ca_file}"]
    ca, key, certificate = (Path(name).read_bytes() for name in (authority.ca_file, issued.key_file, issued.certificate_file))
    advice = {
        grpc.ssl_channel_credentials(ca): "if it wants a certificate, set coordination.ssl.certificate.file",
        None: "if it speaks TLS, set coordination.ssl.ca.file",
    }

    async def scenario() -> None:
        quiet = asyncio.subprocess.DEVNULL
        etcd = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
        right = grpc.ssl_channel_credentials(ca, key, certificate)
        clients = {each: CoordinationClient([address], HastyClock(), credentials=each, timeout_ms=_LONG_MS) for each in advice}
        clients[right] = CoordinationClient([address], SystemClock(), credentials=right, timeout_ms=_LONG_MS)
        try:
            await clients[right].check()  # retries until etcd responds
            for credentials, text in advice.items():
                error = await refused(clients[credentials].check())
                assert text in error.message
                assert not error.is_away
        finally:
            for client in clients.values():
                await client.close()
            etcd.kill()
            await etcd.wait()

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", range(6))
async def test_a_watch_that_is_stopped_as_a_response_arrives_ends(turns: int) -> None:
    class Call:
        response: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def read(self) -> str:
            return await self.response

    reading = asyncio.create_task(client_module._read(Call(), 60_000))
    await all_wait()
    Call.response.set_result("a change")
    for _ in range(turns):
        await one_turn()
    is_cancelled = reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled() is is_cancelled
