"""The data directory of a node in a cluster: it holds some partitions of a topic, and leads them only when told to, in epochs that
the cluster assigns."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.config.broker import BrokerConfig
from brokerd.datadir.node_state import ClusterIdentity
from brokerd.datadir.topic_store import Topic
from brokerd.errors import (
    DataDirectoryError,
    FencedLeaderEpochError,
    InvalidConfigError,
    NotLeaderError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from brokerd.ids import TopicIdPartition
from brokerd.offline.doctor import accept_damaged, check_data_dir, rebuild_checkpoint
from brokerd.offline.rebuild import rebuild_lost
from brokerd.partition.core import InSync, Role
from brokerd.partition.log_state import Snapshot
from brokerd.partition.partition import Partition
from brokerd.storage.files import Files, RealFiles
from tests.support.build import append, payloads
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles, failing
from tests.support.log_manager import LogManager
from tests.support.steps import run_here

TOPIC = Topic("orders", b"o" * 16, 4, {})


CLUSTER = ClusterIdentity("prod", "id of prod")


def opened(files: Files, cluster: ClusterIdentity | None = CLUSTER) -> LogManager:
    manager = LogManager(BrokerConfig(), files, ManualClock(), cluster=cluster)
    manager.open()
    return manager


def held(manager: LogManager, number: int) -> Partition:
    partition = manager.partitions.replica(TopicIdPartition(TOPIC.id, number))
    assert partition is not None
    return partition


def lead(manager: LogManager, epoch: int, *numbers: int) -> None:
    run_here(manager.replicas.lead({TopicIdPartition(TOPIC.id, number): epoch for number in numbers}))


def test_a_directory_holds_the_partitions_that_it_was_given(files: MemoryFiles) -> None:
    manager = opened(files)
    run_here(manager.changes.hold(TOPIC, [3, 1]))
    lead(manager, 5, 1, 3)
    append(held(manager, 3), b"three...")
    held(manager, 3).flush()
    files.kill()
    manager = opened(files)
    assert [partition.tp.partition for partition in manager.partitions] == [1, 3]
    assert held(manager, 3).ends.high_watermark == 0, "who leads knows what is acknowledged"
    lead(manager, 6, 3)
    assert payloads(held(manager, 3)) == [b"three..."]
    assert manager.topics.by_name("orders").partition_count == 4
    with pytest.raises(NotLeaderError, match="orders-0 is not on this node"):
        manager.partitions.leader(TopicIdPartition(TOPIC.id, 0))
    with pytest.raises(UnknownTopicOrPartitionError, match="has partitions 0 to 3, not 4"):
        manager.partitions.leader(TopicIdPartition(TOPIC.id, 4))


def test_a_directory_without_its_checkpoint_leads_nothing_and_cuts_nothing(files: MemoryFiles) -> None:
    manager = opened(files)
    run_here(manager.changes.hold(TOPIC, [0]))
    lead(manager, 5, 0)
    append(held(manager, 0), b"durable.")
    held(manager, 0).flush()
    files.kill()
    files.unlink("checkpoint")
    for epoch in (6, 7):
        manager = opened(files)
        with pytest.raises(StorageError, match="read-only"):
            lead(manager, epoch, 0)
        assert not held(manager, 0).is_leader
        files.kill()
        assert "checkpoint" not in files.listdir(), "it would stand for what could be read"


def test_a_topic_that_grows_elsewhere_changes_here_too(files: MemoryFiles) -> None:
    manager = opened(files)
    run_here(manager.changes.hold(TOPIC, [0]))
    run_here(manager.changes.hold(TOPIC._replace(partition_count=6, configs={"max.message.bytes": "2048"}), []))
    run_here(manager.changes.hold(TOPIC._replace(partition_count=6, configs={"max.message.bytes": "4096"}), [5]))
    assert held(manager, 0).config.max_message_bytes == 4096
    files.kill()
    manager = opened(files)
    assert manager.topics.by_name("orders") == ("orders", TOPIC.id, 6, {"max.message.bytes": "4096"}, (0, 5))
    with pytest.raises(InvalidConfigError, match=r"no\.such"):
        run_here(manager.changes.hold(TOPIC._replace(configs={"no.such": "1"}), [2]))
    assert manager.topics.held(TOPIC.id) == (0, 5)


def test_a_directory_belongs_to_one_cluster(files: MemoryFiles) -> None:
    opened(files)
    refused = {
        None: "belongs to node 0 of cluster 'prod': start it with cluster.name = prod, node.id = 0, and coordination.servers",
        ClusterIdentity("prod", "another"): "but etcd says .* has id another: .* and coordination.servers; .* restore",
    }
    for other, text in refused.items():
        files.kill()
        with pytest.raises(DataDirectoryError, match=text):
            opened(files, other)
    files.kill()
    assert opened(files).cluster_id == "id of prod"
    alone = MemoryFiles()
    opened(alone, None)
    alone.kill()
    with pytest.raises(DataDirectoryError, match="belongs to a node alone, not to cluster 'prod'"):
        opened(alone)


def test_a_deleted_topic_leaves_nothing(files: MemoryFiles) -> None:
    manager = opened(files)
    run_here(manager.changes.hold(TOPIC, [0, 2]))
    before = files.open_count
    run_here(manager.changes.hold(TOPIC, [1]))
    manager.delete_topic("orders")
    assert files.open_count <= before
    assert [name for name in files.listdir() if name.startswith(TOPIC.id.hex())] == []
    assert list(opened_again(files).partitions) == []


def opened_again(files: MemoryFiles) -> LogManager:
    files.kill()
    return opened(files)


def test_the_doctor_knows_what_a_directory_holds(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = str(tmp_path_factory.mktemp("data"))
    manager = opened(RealFiles(path))
    run_here(manager.changes.hold(TOPIC, [1, 2]))
    manager.close()
    assert check_data_dir(path) == []


def test_lost_topics_come_back_as_the_cluster_has_them_and_only_those_here(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("node")
    manager = opened(RealFiles(str(path)))
    run_here(manager.changes.hold(TOPIC, [1, 3]))
    manager.close()
    (path / "topics").unlink()
    rebuild_lost(str(path), {})
    manager = opened(RealFiles(str(path)))
    (topic,) = manager.topics.list()
    assert (topic.name, topic.partitions_here) == (f"recovered-{TOPIC.id.hex()}", (1, 3))
    run_here(manager.changes.hold(TOPIC, []))
    assert manager.topics.list() == [TOPIC._replace(held=(1, 3))]
    assert not manager.topics.has(topic.name)
    manager.close()
    manager = opened(RealFiles(str(path)))
    assert manager.topics.list() == [TOPIC._replace(held=(1, 3))]
    manager.close()
    assert not (path / TopicIdPartition(TOPIC.id, 0).directory_name).exists()


@pytest.mark.parametrize("is_rebuilt", [True, False], ids=["checkpoint", "damage"])
def test_a_repair_raises_no_leader_epochs(tmp_path: Path, is_rebuilt: bool) -> None:
    """In a cluster, a start is no election. A node with a higher epoch than etcd would report that etcd was restored."""
    manager = opened(RealFiles(str(tmp_path)))
    run_here(manager.changes.hold(TOPIC, [0, 1, 2]))
    lead(manager, 3, 0, 1)
    for number in (0, 1):
        append(held(manager, number), b"record")
    damaged = tmp_path / held(manager, 0).segments[0].path
    manager.close()
    if is_rebuilt:
        opened(RealFiles(str(tmp_path))).close()
        (tmp_path / "checkpoint").unlink()
        rebuild_checkpoint(str(tmp_path), ["orders-0"])
    else:
        (tmp_path / "node-epoch").unlink()
        rebuild_lost(str(tmp_path), {})
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
        accept_damaged(str(tmp_path), ["orders-0"])
    manager = opened(RealFiles(str(tmp_path)))
    assert [held(manager, number).leader_epoch for number in (0, 1)] == [3, 3]
    assert held(manager, 2).leader_epoch == 0
    manager.close()


def test_a_start_gives_no_roles_and_uses_up_no_epochs(files: MemoryFiles) -> None:
    manager = opened(files)
    run_here(manager.changes.hold(TOPIC, [0]))
    lead(manager, 3, 0)
    for _ in range(3):
        manager = opened_again(files)
    with pytest.raises(NotLeaderError, match="not led by this node"):
        manager.partitions.leader(TopicIdPartition(TOPIC.id, 0))
    with pytest.raises(FencedLeaderEpochError):
        lead(manager, 3, 0)
    lead(manager, 4, 0)
    assert held(manager, 0).leads_in(4)


def test_an_epoch_is_durable_before_its_first_batch(files: MemoryFiles) -> None:
    manager = opened(files)
    run_here(manager.changes.hold(TOPIC, [0]))
    for epoch in (2, 40):  # several elections without a restart
        lead(manager, epoch, 0)
        append(held(manager, 0), b"epoch %03d" % epoch)
        held(manager, 0).flush()
    manager = opened_again(files)
    assert held(manager, 0).damage is None
    assert held(manager, 0).leader_epoch == 40
    lead(manager, 41, 0)
    assert [payload[:9] for payload in payloads(held(manager, 0))] == [b"epoch 002", b"epoch 040"]


def test_who_cannot_make_an_epoch_durable_does_not_lead(files: MemoryFiles) -> None:
    manager = opened(files)
    run_here(manager.changes.hold(TOPIC, [0]))
    files.hook = failing("create", path="checkpoint")
    with pytest.raises(OSError, match="Input/output error"):
        lead(manager, 2, 0)
    assert not held(manager, 0).is_leader
    files.hook = None
    lead(manager, 2, 0)
    assert held(manager, 0).leads_in(2)


def test_a_topic_deleted_meanwhile_is_not_led(files: MemoryFiles) -> None:
    manager = opened(files)
    run_here(manager.changes.hold(TOPIC, [0, 1]))
    steps = manager.replicas.lead({TopicIdPartition(TOPIC.id, number): 2 for number in (0, 1)})
    job = next(steps)
    run_here(manager.changes.delete("orders"))
    job()
    with pytest.raises(StopIteration):
        steps.send(None)
    assert list(manager.partitions) == []


def test_a_copy_is_not_cut_or_begun_anew_for_a_leader_that_has_been_replaced(files: MemoryFiles) -> None:
    """Requests of the leader of epoch 5 run late. The leader of epoch 6 may count these records as replicated."""
    manager, tp = opened(files), TopicIdPartition(TOPIC.id, 0)
    run_here(manager.changes.hold(TOPIC, [0]))
    run_here(manager.replicas.lead({tp: 5}, {tp: InSync([2], 2, 3)}))
    log = held(manager, 0)
    append(log, b"copied..")
    log.flush()
    run_here(manager.replicas.follow({tp: 6}))
    with pytest.raises(NotLeaderError, match="the leader has changed"):
        run_here(manager.replicas.cut({log: 0}, 5))
    with pytest.raises(NotLeaderError, match="the leader has changed"):
        run_here(manager.replicas.begin_anew(tp, Snapshot(log.crc_seed, 7, (), {}), 5))
    assert held(manager, 0) is log
    assert log.ends.log_end_offset == 1
    assert run_here(manager.replicas.cut({log: 0}, 6)) == {}
    assert log.ends.log_end_offset == 0
    run_here(manager.replicas.begin_anew(tp, Snapshot(log.crc_seed, 7, (), {}), 6))
    assert held(manager, 0).ends.log_end_offset == 7


def test_who_cannot_make_the_next_leaders_epoch_durable_leads_no_more(files: MemoryFiles) -> None:
    """Clients must not stay with this node: their requests would fail, and readers would see no new records."""
    manager, tp = opened(files), TopicIdPartition(TOPIC.id, 0)
    run_here(manager.changes.hold(TOPIC, [0]))
    lead(manager, 2, 0)
    files.hook = failing("create", path="checkpoint")
    with pytest.raises(OSError, match="Input/output error"):
        run_here(manager.replicas.follow({tp: 3}))
    assert not held(manager, 0).is_leader
    files.hook = None
    run_here(manager.replicas.follow({tp: 3}))
    assert held(manager, 0).has_tenure(Role.FOLLOWER, 3)
