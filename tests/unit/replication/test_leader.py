"""Goal: the leader counts every replica that may be in sync, and proposes exactly the changes that are due."""

from __future__ import annotations

import pytest

from brokerd.cluster.election import ever_in_sync
from brokerd.cluster.image import Node, PartitionAt
from brokerd.cluster.keys import InSyncReplica, PartitionEntry, Registration
from brokerd.config.topic import TopicConfig
from brokerd.errors import NotEnoughReplicasError
from brokerd.partition.core import InSync
from brokerd.replication.leader import (
    LedPartition,
    Proposal,
    handed_over,
    in_sync_of,
    joined,
    left,
    resigned,
)
from brokerd.replication.reassignment import advanced
from tests.support.build import raw_batch
from tests.support.clock import START_WALL_MS
from tests.support.partition_replica import Replica

LAG_MS = 1_000
NODES = {number: Node(number, 10 + number, Registration("h", 1, f"d{number}"), 20 + number) for number in (1, 2, 3)}
ALL = tuple(InSyncReplica(number, f"d{number}") for number in (1, 2, 3))
ENTRY = PartitionEntry((1, 2, 3), ALL, 1, 11, 1)


class Led:
    """A leader with two followers."""

    def __init__(self, entry: PartitionEntry = ENTRY, config: TopicConfig | None = None) -> None:
        self.replica = Replica(0, config or TopicConfig())
        self.replica.start(is_alone=False)
        self.log = self.replica.log
        self.log.lead(1, in_sync_of(entry))
        self.revision, self.now_ms = 1, 0
        self.led = LedPartition(self.log, PartitionAt(entry, 1), 0)

    def append(self, count: int = 1) -> int:
        """Appends durably; returns the log end."""
        for _ in range(count):
            self.log.append(raw_batch(b"row"), now_wall_ms=START_WALL_MS)
        self.log.flush()
        return self.log.ends.log_end_offset

    def report(self, node: int, end: int, *, life: Node | None = None) -> None:
        self.led.reported(life or NODES[node], end, 0, self.now_ms)

    def proposal(self, *alive: int) -> Proposal | None:
        return self.led.proposal({number: NODES[number] for number in alive or (1, 2, 3)}, self.now_ms, LAG_MS)

    def decide(self, entry: PartitionEntry) -> None:
        """The store applies `entry`."""
        self.revision += 1
        self.led.entry_changed(PartitionAt(entry, self.revision))

    @property
    def high_watermark(self) -> int:
        return self.log.ends.high_watermark


def test_the_high_watermark_is_what_all_in_sync_have() -> None:
    led = Led()
    end = led.append(3)
    led.report(2, end)
    assert led.high_watermark == 0
    led.report(3, 1)
    assert led.high_watermark == 1
    led.report(3, end)
    assert led.high_watermark == end


def test_who_leaves_counts_until_it_is_decided() -> None:
    led = Led()
    end = led.append()
    led.report(2, end)
    proposal = led.proposal(1, 2)  # node 3 has ended
    assert proposal == Proposal(left(ENTRY, {3}), 1)
    assert led.high_watermark == 0
    led.decide(proposal.entry)
    assert led.high_watermark == end
    assert proposal.entry.out_of_sync == (ALL[2],)


def test_who_joins_counts_before_it_is_decided() -> None:
    led = Led(left(ENTRY, {3}))
    end = led.append()
    led.report(2, end)
    assert led.high_watermark == end
    led.report(3, end)
    assert led.proposal() == Proposal(ENTRY, 1, NODES[3])
    end = led.append()
    led.report(2, end)
    assert led.high_watermark == end - 1, "node 3 may be elected by now"
    led.report(3, end)
    assert led.high_watermark == end


def test_a_joiner_counts_until_the_entry_changes() -> None:
    led = Led(left(ENTRY, {3}))
    end = led.append()
    for node in (2, 3):
        led.report(node, end)
    assert led.proposal() is not None
    touched = led.proposal(1, 2)  # node 3 has ended, and whether it had joined is unknown
    assert touched == Proposal(left(ENTRY, {3}), 1), "the entry is replaced by itself, which ends the proposal"
    end = led.append()
    led.report(2, end)
    assert led.high_watermark == end - 1
    led.decide(touched.entry)
    assert led.high_watermark == end


def test_a_proposal_that_was_certainly_not_made_counts_no_more() -> None:
    led = Led(left(ENTRY, {3}))
    led.report(3, 0)
    proposal = led.proposal()
    assert proposal is not None
    led.led.given_up(proposal)
    end = led.append()
    led.report(2, end)
    assert led.high_watermark == end


@pytest.mark.parametrize("second", ["joins", "leaves"])
def test_a_proposal_that_was_not_made_says_nothing_of_an_earlier_one(second: str) -> None:
    """The store's response to the first proposal was lost. The proposal may have been applied, and node 3 elected."""
    led = Led(left(ENTRY, {3}))
    led.report(3, 0)
    assert led.proposal() == Proposal(ENTRY, 1, NODES[3])
    again = led.proposal() if second == "joins" else led.proposal(1, 3)
    assert again is not None
    led.led.given_up(again)
    end = led.append()
    led.report(2, end)
    assert led.high_watermark == 0, "node 3 may be in sync by now, and lacks it"
    led.report(3, end)
    assert led.high_watermark == end


def test_an_epoch_that_is_over_changes_nothing() -> None:
    led = Led(left(ENTRY, {3}))
    led.report(3, 0)
    proposal = led.proposal()
    assert proposal is not None
    end = led.append()
    led.log.follow(2)
    led.led.given_up(proposal)
    led.report(2, 0)
    assert led.high_watermark == 0
    led.log.leader_told(end, end, 0)
    assert led.high_watermark == end, "it is its leader's, whatever its own followers have"
    assert led.proposal() is None


def test_another_disk_of_a_node_does_not_count_for_the_one_in_sync() -> None:
    led = Led()
    end = led.append()
    led.report(2, end)
    other = NODES[3]._replace(epoch=33, registration=NODES[3].registration._replace(directory_id="another"))
    led.report(3, end, life=other)
    assert led.high_watermark == 0, "the disk that is in sync may come back"
    assert led.led.proposal({**NODES, 3: other}, 0, LAG_MS) == Proposal(left(ENTRY, {3}), 1)


def test_a_leader_of_an_earlier_epoch_changes_nothing() -> None:
    """This node leads again, with other replicas in sync, and has not read the new entry yet."""
    led = Led(left(ENTRY, {3}))
    led.report(3, 0)
    led.log.lead(3, in_sync_of(ENTRY))
    assert led.proposal() is None
    end = led.append()
    led.report(2, end)
    assert led.high_watermark == 0


@pytest.mark.parametrize("has", [-1, 0])
def test_who_joins_has_all_below_the_high_watermark(has: int) -> None:
    led = Led(left(ENTRY, {3}))
    end = led.append()
    led.report(2, end)
    led.report(3, end + has)
    assert (led.proposal() is not None) == (has == 0)


def test_who_joins_has_all_that_the_log_had_when_the_epoch_began() -> None:
    led = Led(left(ENTRY, {3}))
    end = led.append()  # not acknowledged as far as this leader knows
    led.log.lead(2, InSync([2], 2, 3))
    led.led = LedPartition(led.log, PartitionAt(left(ENTRY, {3})._replace(leader_epoch=2), 2), 0)
    led.report(3, end - 1)
    assert led.proposal() is None
    led.report(3, end)
    assert led.proposal() is not None


def test_who_reaches_the_high_watermark_and_never_the_end_does_not_keep_others_from_joining() -> None:
    """The high watermark does not advance while too few are in sync: a node with a full disk would join and leave for ever."""
    alone = left(ENTRY, {2, 3})
    led = Led(alone, TopicConfig(min_insync_replicas=2))
    end, led.now_ms = led.append(2), LAG_MS + 1
    led.report(2, 0)
    assert led.proposal() is None
    led.report(3, end)
    assert led.proposal() == Proposal(joined(alone, ALL[2]), 1, NODES[3])


def test_a_node_whose_disk_refuses_joins_only_if_it_keeps_up() -> None:
    led = Led(left(ENTRY, {2, 3}), TopicConfig(min_insync_replicas=2))
    led.append(2)
    led.report(2, 0)
    for now_ms, joins in ((1_001, False), (1_000, True)):
        assert (led.led.proposal(refusing(2), now_ms, 9_000) is not None) == joins
    led = Led(left(ENTRY, {2, 3}), TopicConfig(min_insync_replicas=2))
    led.now_ms = 5_000
    led.report(2, led.append(2))
    assert led.led.proposal(refusing(2), 5_000, 9_000) is not None


def test_another_life_than_the_one_that_reported_does_not_join() -> None:
    led = Led(left(ENTRY, {3}))
    led.report(3, 0, life=NODES[3]._replace(epoch=5))
    assert led.proposal() is None


def test_a_follower_whose_stream_has_ended_does_not_join_by_what_it_told() -> None:
    led = Led(left(ENTRY, {3}))
    led.report(3, 0)
    led.led.withdrawn(3)
    assert led.proposal() is None
    led.report(3, 0)
    assert led.proposal() is not None
    led.led.withdrawn(9)


def test_a_follower_that_has_not_had_everything_for_long_leaves() -> None:
    led = Led()
    for led.now_ms in (0, LAG_MS, 2 * LAG_MS):
        end = led.append()
        led.report(2, end)
        led.report(3, end)
        assert led.proposal() is None
    end = led.append()
    led.report(2, end)
    led.now_ms += LAG_MS
    assert led.proposal() is None
    led.now_ms += 1
    assert led.proposal() == Proposal(left(ENTRY, {3}), 1)


def test_a_follower_that_keeps_up_while_the_log_grows_stays() -> None:
    led = Led()
    before = 0
    for led.now_ms in range(0, 5 * LAG_MS, LAG_MS // 2):
        end = led.append()
        led.report(2, before)  # the log end at its last report
        led.report(3, before)
        before = end
        assert led.proposal() is None


def test_an_idle_log_has_no_lag() -> None:
    led = Led()
    led.report(2, 0)
    led.report(3, 0)
    led.now_ms = 100 * LAG_MS
    assert led.proposal() is None
    led.append()
    assert led.proposal() is None


def test_a_follower_with_another_directory_leaves() -> None:
    led = Led()
    emptied = NODES[3]._replace(epoch=99, registration=Registration("h", 1, "d9"))
    proposal = led.led.proposal({**NODES, 3: emptied}, 0, LAG_MS)
    assert proposal == Proposal(left(ENTRY, {3}), 1)
    led.decide(proposal.entry)
    led.report(3, 0, life=emptied)
    again = led.led.proposal({**NODES, 3: emptied}, 0, LAG_MS)
    assert again is not None
    assert again.entry.isr == (*ALL[:2], InSyncReplica(3, "d9"))
    assert again.entry.out_of_sync == (), "the disk that was replaced is gone"


def test_a_follower_that_has_lost_what_it_reported_leaves() -> None:
    led = Led()
    end = led.append(2)
    led.report(3, end)
    led.report(3, end - 1)
    led.report(2, end)
    assert led.high_watermark == end, "it was there"
    assert led.proposal() == Proposal(left(ENTRY, {3}), 1)


def test_a_follower_that_has_lost_what_it_reported_to_a_former_leader_leaves() -> None:
    """Its machine was put back to an earlier state: it could be elected before it has caught up."""
    led = Led()
    end = led.append(2)
    led.report(2, end)
    led.report(3, end)
    entry = ENTRY._replace(leader_epoch=2)
    led.log.lead(2, in_sync_of(entry))
    led.led = LedPartition(led.log, PartitionAt(entry, 2), 0)
    led.append()
    led.report(2, end)
    assert led.proposal() is None
    led.report(3, end - 1)
    assert led.proposal() == Proposal(left(entry, {3}), 2)


def test_a_leader_whose_log_has_stopped_hands_over() -> None:
    led = Led()
    led.log.health.read_only_reason = "a test"
    proposal = led.proposal(1, 3)
    assert proposal is not None
    assert proposal.entry == left(ENTRY, {1})._replace(leader=3, leader_node_epoch=13, leader_epoch=2)
    led.decide(left(ENTRY, {2, 3}))
    assert led.proposal() is None, "nobody else has everything"


def test_a_leader_that_is_not_registered_changes_nothing() -> None:
    led = Led()
    led.now_ms = 100 * LAG_MS
    led.append()
    assert led.proposal(2, 3) is None
    assert led.led.proposal({**NODES, 1: NODES[1]._replace(epoch=99)}, led.now_ms, LAG_MS) is None


def test_too_few_in_sync_hold_the_high_watermark() -> None:
    config = TopicConfig(min_insync_replicas=2)
    led = Led(left(ENTRY, {2, 3}), config)
    led.append()
    assert (led.high_watermark, led.log.core.has_enough_in_sync) == (0, False)
    led.decide(left(ENTRY, {3}))
    led.report(2, 1)
    assert (led.high_watermark, led.log.core.has_enough_in_sync) == (1, True)
    alone = Led(ENTRY._replace(replicas=(1,), isr=ALL[:1]), config)
    alone.append()
    assert alone.high_watermark == 1, "all that there are"


def test_who_hears_nobody_is_cut_off() -> None:
    led = Led()
    assert not led.led.hears_nobody({}, LAG_MS, LAG_MS)
    assert led.led.hears_nobody({}, LAG_MS + 1, LAG_MS)
    assert not led.led.hears_nobody({3: 1}, LAG_MS + 1, LAG_MS)
    led.decide(left(ENTRY, {2, 3}))
    assert not led.led.hears_nobody({}, 100 * LAG_MS, LAG_MS), "nobody else is needed"


def test_a_node_that_stops_names_the_next_leader_and_stays_in_sync() -> None:
    led_by_2 = ENTRY._replace(leader=2, leader_node_epoch=12, leader_epoch=2)
    assert handed_over(ENTRY, NODES) == led_by_2
    assert handed_over(ENTRY, {1: NODES[1]}) is None, "nobody else is alive"
    assert handed_over(left(ENTRY, {2, 3}), NODES) is None, "nobody else is in sync"


def test_a_node_whose_copy_is_of_no_use_leaves() -> None:
    assert resigned(ENTRY, 2, NODES) == left(ENTRY, {2})
    led_by_3 = left(ENTRY, {2})._replace(leader=3, leader_node_epoch=13, leader_epoch=2)
    assert resigned(ENTRY, 2, {2: NODES[2], 3: NODES[3]}) == led_by_3, "the leader has ended"
    assert resigned(left(ENTRY, {3}), 2, {2: NODES[2], 3: NODES[3]}) is None, "nobody else that is in sync is alive"
    assert resigned(ENTRY, 1, {1: NODES[1], 3: NODES[3]}) == left(ENTRY, {1})._replace(
        leader=3, leader_node_epoch=13, leader_epoch=2
    )
    assert resigned(ENTRY, 1, {1: NODES[1]}) is None, "nobody else is alive"
    assert resigned(left(ENTRY, {2, 3}), 1, NODES) is None
    assert resigned(left(ENTRY, {3}), 3, NODES) is None, "it is not in sync"


def test_members_stay_in_the_order_of_the_replicas() -> None:
    assert joined(left(ENTRY, {1}), ALL[0]).isr == ALL


def test_the_lag_is_that_of_the_slowest_follower() -> None:
    led = Led()
    assert led.led.lag(500) == (0, 0), "there is nothing that they lack"
    led.append(3)
    led.now_ms = 100
    assert led.led.lag(100) == (3, 100)
    led.report(2, 3)
    led.report(3, 1)
    assert led.led.lag(250) == (2, 250), "node 3 has never had everything"
    led.now_ms = 300
    led.report(3, 3)
    assert led.led.lag(400) == (0, 0)
    led.append()
    assert led.led.lag(1_000) == (1, 900), "node 2 was the last to have everything, at 100"
    led.decide(left(ENTRY, {2, 3}))
    assert led.led.lag(1_000) == (1, 0), "who is not in sync lacks records all the same, and nobody waits for it"
    led.decide(ENTRY._replace(replicas=(1,), isr=ALL[:1]))
    assert led.led.lag(1_000) == (0, 0)


def test_a_follower_in_sync_that_has_not_reported_yet_has_what_is_acknowledged() -> None:
    led = Led()
    for node in (2, 3):
        led.report(node, led.append())
    led.report(2, 2)
    led.log.lead(2, in_sync_of(left(ENTRY, {3})))
    led.led = LedPartition(led.log, PartitionAt(left(ENTRY, {3})._replace(leader_epoch=2), 2), 0)
    led.led.reported(NODES[3], 1, 0, 0)
    assert (led.high_watermark, led.led.lag(100)) == (2, (1, 0)), "node 3 is not in sync, and lacks one; node 2 has not reported"


def test_who_joins_has_the_log_start_durably() -> None:
    """DeleteRecords has been answered, so the deleted records must not come back with another leader."""
    led = Led(left(ENTRY, {3}))
    end = led.append(2)
    led.report(2, end)
    led.log.set_log_start(1)
    led.led.reported(NODES[3], end, 0, led.now_ms)
    assert led.proposal() is None
    led.led.reported(NODES[3], end, 1, led.now_ms)
    assert led.proposal() is not None
    assert sorted(led.led.log_starts()) == [0, 1], "who joins counts, too"


def test_an_entry_that_is_heard_of_again_decides_nothing() -> None:
    """The same entry may be read again. Until another entry arrives, node 3 may have joined by the proposal and been elected."""
    led = Led(left(ENTRY, {3}))
    led.report(3, 0)
    assert led.proposal() is not None
    led.led.entry_changed(PartitionAt(left(ENTRY, {3}), 1))
    end = led.append()
    led.report(2, end)
    assert led.high_watermark == 0
    led.report(3, end)
    assert led.high_watermark == end


def test_the_entry_of_a_store_that_has_gone_back_counts() -> None:
    """The store has forgotten that a replica left and may elect it, so the high watermark waits for it."""
    led = Led(ENTRY)
    led.revision = 7
    led.led.entry_changed(PartitionAt(left(ENTRY, {3}), 7))
    led.led.entry_changed(PartitionAt(ENTRY, 5))
    end = led.append()
    led.report(2, end)
    assert led.high_watermark == 0
    led.report(3, end)
    assert led.high_watermark == end


def test_min_insync_replicas_that_is_changed_counts_at_once() -> None:
    """An operator lowers it because other replicas are gone. Records appended before must not wait for them."""
    led = Led(left(ENTRY, {2, 3}), TopicConfig(min_insync_replicas=2))
    end = led.append()
    assert led.high_watermark == 0
    led.log.configure(TopicConfig(min_insync_replicas=1))
    assert led.high_watermark == end
    led.log.check_enough_in_sync()
    led.log.configure(TopicConfig(min_insync_replicas=2))
    led.append()
    assert led.high_watermark == end
    with pytest.raises(NotEnoughReplicasError):
        led.log.check_enough_in_sync()


def refusing(*node_ids: int) -> dict[int, Node]:
    """All nodes; the registrations of `node_ids` say that their disks refuse appends."""
    full = {number: node.registration._replace(refuses=number in node_ids) for number, node in NODES.items()}
    return {number: node._replace(registration=full[number]) for number, node in NODES.items()}


def test_a_leader_whose_disk_is_full_hands_over_to_one_with_room() -> None:
    led = Led()
    assert led.led.proposal(refusing(1), 0, LAG_MS) is None, "others may be about to tell the same"
    assert led.led.proposal(refusing(1), 999, LAG_MS) is None
    proposal = led.led.proposal(refusing(1, 2), 1_000, LAG_MS)
    assert proposal == Proposal(ENTRY._replace(leader=3, leader_node_epoch=13, leader_epoch=2), 1), (
        "all stay in sync: they have the same"
    )


def test_a_leader_with_room_again_keeps_the_lead() -> None:
    led = Led()
    for now_ms, full in ((0, [1]), (600, []), (700, [1])):
        assert led.led.proposal(refusing(*full), now_ms, LAG_MS) is None
    for number in (2, 3):
        led.report(number, 0)
    assert led.led.proposal(refusing(1), 1_600, LAG_MS) is None
    assert led.led.proposal(refusing(1), 1_700, LAG_MS) is not None


def test_a_leader_keeps_the_lead_if_the_disks_of_all_are_full() -> None:
    led = Led()
    for now_ms in (0, LAG_MS):
        assert led.led.proposal(refusing(1, 2, 3), now_ms, LAG_MS) is None
    alive = {number: node for number, node in refusing(1, 2).items() if number != 3}
    assert led.led.proposal(alive, LAG_MS, LAG_MS) == Proposal(left(ENTRY, {3}), 1), "it looks after its followers"


def test_copies_that_are_being_made_do_not_count_towards_min_insync_replicas() -> None:
    """Otherwise a partition of one replica would refuse appends while it moves."""
    entry = PartitionEntry((1, 2, 3), (ALL[0],), leader=1, target=(2, 3))
    assert ever_in_sync(entry) == {1}
    assert in_sync_of(entry) == ([], 1, 1)
    assert in_sync_of(entry).is_enough(2)
    assert not in_sync_of(entry).is_under_replicated
    halfway = joined(entry, ALL[1])
    assert in_sync_of(halfway) == ([2], 2, 2)
    assert not in_sync_of(halfway).is_under_replicated
    fell_out = left(halfway, {2})
    assert in_sync_of(fell_out).is_under_replicated
    assert in_sync_of(fell_out) == ([], 1, 2)
    assert not in_sync_of(fell_out).is_enough(2)
    assert in_sync_of(fell_out).is_enough(1)


def test_a_copy_that_is_made_anew_before_the_last_one_was_removed_does_not_count_either() -> None:
    """A move was stopped and requested again. Node 2 is listed as out of sync so that it removes its earlier copy. It is added once
    it has done so, or if the listed copy is on a disk that it no longer has."""
    entry = PartitionEntry((1,), (ALL[0],), leader=1, out_of_sync=(ALL[1],), target=(2,))
    assert advanced(entry, NODES) is None
    assert in_sync_of(entry).is_enough(2), "it takes records meanwhile"
    added = advanced(entry._replace(out_of_sync=(InSyncReplica(2, "former"),)), NODES)
    assert added is not None
    assert added.replicas == (1, 2)
    assert in_sync_of(added) == ([], 1, 1)
    assert in_sync_of(added).is_enough(2)
