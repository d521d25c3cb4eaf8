"""`brokerd cluster`: prints nodes, leaders and replicas; moves leaders and replicas. `brokerd info`: prints a broker's versions,
limits and nodes."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from brokerd import __version__
from brokerd.cli.output import NONE, cluster_text, dashed, fields, known, listed, note, placed, show, table
from brokerd.cli.parser import connect, connect_to_change, usage_error
from brokerd.cli.topic_lookup import with_nearest_name
from brokerd.client.blocking import BlockingClient
from brokerd.client.response_checks import error_in
from brokerd.clock import SystemClock
from brokerd.config.settings import INT32_MAX, is_number
from brokerd.errors import ClientError, InvalidRequestError, UnknownTopicOrPartitionError, WireError, counted, some_of
from brokerd.ids import INTERNAL_PREFIX, NO_LEADER, address_of, nodes_text
from brokerd.wire.v1.metadata_pb2 import MetadataResponse, Node, PartitionMetadata
from brokerd.wire.v1.topics_pb2 import DrainNodeResponse, NamedPartition

_LOOK_S = 0.2
_TELL_MS = 3_000
_REPLACED_MS = 3_000  # every node has learned of a move by then
_Named: TypeAlias = tuple[str, PartitionMetadata]  # topic name and partition


def print_info(args: argparse.Namespace) -> None:
    """Prints a broker's versions, limits and nodes. Raises BrokerdError, UsageError."""
    with connect(args) as client:
        server, nodes = client.server_info(), client.metadata([]).nodes.values()
    limits = sorted((limit.name, limit.value) for limit in server.limits)
    document = {
        "cluster_name": server.cluster_name or None,
        **fields(server, "cluster_id node_id software_version min_wire_version max_wire_version"),
        "client_version": __version__,
        "limits": dict(limits),
        "nodes": [fields(node, "node_id host port") for node in nodes],
    }
    wire = f"wire versions {server.min_wire_version} to {server.max_wire_version}"
    lines = [
        f"broker {server.software_version}, node {server.node_id} of cluster {cluster_text(server)}",
        f"  {wire}; this command is of version {__version__}",
        table(("NODE", "ADDRESS"), [(node.node_id, node.address) for node in nodes], indent="  "),
        table(("LIMIT", "VALUE"), limits, indent="  "),
    ]
    show(args, document, lines)


def print_nodes(args: argparse.Namespace) -> None:
    """Prints one line per node, including nodes that are down but have replicas. Raises BrokerdError, UsageError."""
    with connect(args) as client:
        cluster = client.describe_cluster(None, internal=True)
        nodes = _nodes(cluster, client.find_coordinator())
    show(args, nodes, [_node_table(nodes), *_doubts(cluster)])


def print_status(args: argparse.Namespace) -> None:
    """Prints nodes and partitions. Raises BrokerdError, UsageError."""
    with connect(args) as client:
        cluster, coordinator_id = _described(client, args.topics), client.find_coordinator()
        everything = client.describe_cluster(None, internal=True) if args.topics else cluster
    nodes, shown = _nodes(everything, coordinator_id), _shown(args, cluster)
    document = {
        "cluster_name": cluster.cluster_name or None,
        "cluster_id": cluster.cluster_id,
        "controller_id": known(cluster.controller_id),
        "coordinator_id": known(coordinator_id),
        "is_cut_off": cluster.is_cut_off,
        "nodes": nodes,
        "partitions": [
            {"topic": name, **fields(one, "partition leader_epoch under_replicated under_min_isr error"), **placed(one)}
            for name, one in shown
        ],
    }
    show(args, document, _status_lines(cluster, nodes, shown))


def _described(client: BlockingClient, names: Sequence[str]) -> MetadataResponse:
    """The cluster's metadata with the named topics; all topics if `names` is empty. Raises BrokerdError."""
    cluster = client.describe_cluster(names or None, internal=True)
    for topic in cluster.topics if names else ():
        error = error_in(topic)
        if error is not None:
            raise with_nearest_name(client, topic.name, error)
    return cluster


def _status_lines(cluster: MetadataResponse, nodes: Sequence[Mapping[str, Any]], partitions: Sequence[_Named]) -> Iterator[str]:
    every = [partition for _, partition in _partitions(cluster)]
    below, moving = sum(one.under_min_isr for one in every), sum(bool(one.target) for one in every)
    down_count = sum(node["state"] == "down" for node in nodes)
    down = f" ({down_count} down)" if down_count else ""
    yield (
        f"cluster {cluster_text(cluster)}: {counted(len(nodes), 'node')}{down}, {counted(len(every), 'partition')}, "
        f"{sum(one.leader == NO_LEADER for one in every)} without a leader, "
        f"{sum(one.under_replicated for one in every)} with replicas that are not in sync"
        + (f", {below} below min.insync.replicas" if below else "")
        + (f", {moving} moving" if moving else "")
    )
    yield from _doubts(cluster)
    yield _node_table(nodes, indent="  ")
    if partitions:
        rows = [
            (name, one.partition, dashed(one.leader), dashed(one.leader_epoch), _replicas_text(one), _in_sync_text(one))
            for name, one in partitions
        ]
        yield table(("TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR"), rows, indent="  ")
    for name, one in partitions:
        if one.HasField("error"):
            which, text = f"{name}-{one.partition}", one.error.message
            yield f"  {text}" if text.startswith(which) else f"  {which}: {text}"


def _doubts(cluster: MetadataResponse) -> Iterator[str]:
    """A warning if the answering node is cut off from etcd, so that its metadata may be stale."""
    if cluster.is_cut_off:
        yield (
            "the node that answered is cut off from etcd: what it says may be old, and nothing is elected, moved or created "
            "as long as etcd is away"
        )


def _replicas_text(partition: PartitionMetadata) -> str:
    moves = partition.target and list(partition.target) != list(partition.replicas)
    return listed(partition.replicas) + (f" -> {listed(partition.target)}" if moves else "")


def _in_sync_text(partition: PartitionMetadata) -> str:
    return listed(partition.isr) + (" (too few)" if partition.under_min_isr else "")


def _shown(args: argparse.Namespace, cluster: MetadataResponse) -> list[_Named]:
    """The partitions that the command's filters select; all without a filter."""
    is_every = not (args.under_replicated or args.under_min_isr or args.unavailable)
    return [
        (name, one)
        for name, one in _partitions(cluster)
        if is_every
        or (args.under_replicated and one.under_replicated)
        or (args.under_min_isr and one.under_min_isr)
        or (args.unavailable and one.leader == NO_LEADER)
    ]


def _partitions(cluster: MetadataResponse) -> Iterator[_Named]:
    """Partitions with their topic names, sorted by topic. Topics deleted meanwhile are left out."""
    for topic in sorted(cluster.topics, key=lambda one: one.name):
        for partition in topic.partitions:
            yield topic.name, partition


def _nodes(cluster: MetadataResponse, coordinator_id: int) -> list[dict[str, Any]]:
    """All nodes with state and number of replicas, for a JSON document. A node that is down is known only by its replicas."""
    copies = Counter(node_id for _, one in _partitions(cluster) for node_id in one.replicas)
    alive = {node.node_id: node for node in cluster.nodes}
    nodes = []
    for node_id in sorted(copies.keys() | alive.keys()):
        node = alive.get(node_id, Node(node_id=node_id))
        nodes.append(
            {
                "node_id": node_id,
                "host": node.host or None,
                "port": node.port or None,
                "rack": node.rack or None,
                "state": "down" if node_id not in alive else "disk refuses" if node.disk_refuses else "up",
                "copies": copies[node_id],
                "feature_level": node.feature_level or None,
                "is_controller": node_id == cluster.controller_id,
                "is_coordinator": node_id == coordinator_id,
            }
        )
    return nodes


def _node_table(nodes: Iterable[Mapping[str, Any]], *, indent: str = "") -> str:
    rows = []
    for node in nodes:
        held = ", ".join(role for role in ("controller", "coordinator") if node[f"is_{role}"])
        address = address_of(node["host"], node["port"]) if node["host"] else NONE
        numbers = (node["copies"], node["feature_level"] or NONE)
        rows.append((node["node_id"], address, node["rack"] or NONE, node["state"], *numbers, held or NONE))
    return table(("NODE", "ADDRESS", "RACK", "STATE", "COPIES", "LEVEL", "ROLE"), rows, indent=indent)


# --- moves


def reassign(args: argparse.Namespace) -> None:
    """Moves a partition to other nodes, or stops its move. Raises BrokerdError, UsageError."""
    replicas = () if args.stop else _node_ids(args)
    _check_timeout(args)
    with connect_to_change(args) as client:
        _move(args, client, replicas, is_leader_enough=False)


def move_leader(args: argparse.Namespace) -> None:
    """Makes another node that has a replica the leader of a partition. Raises BrokerdError, UsageError."""
    _check_timeout(args)
    with connect_to_change(args) as client:
        now = _partition_now(args, client)
        held = now.target or now.replicas
        if args.node not in held:
            raise ClientError(
                f"node {args.node} has no copy of {args.topic}-{args.partition}, which is on {listed(held)}: give it one with "
                "'brokerd cluster reassign'"
            )
        _move(args, client, (args.node, *(node_id for node_id in held if node_id != args.node)), is_leader_enough=True)


def _led_by_others(args: argparse.Namespace, client: BlockingClient) -> list[_Named]:
    return [(name, one) for name, one in _partitions(_described(client, args.topics)) if list(one.replicas[:1]) != [one.leader]]


def _wait_for_leaders(
    args: argparse.Namespace, client: BlockingClient, begun: Collection[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Waits until the preferred leaders lead these partitions; returns the partitions whose move was stopped or replaced."""
    clock = SystemClock()
    waiting: list[_Named] = []
    still_ms: int | None = None  # since when no waiting partition moves

    def left() -> str:
        nonlocal still_ms, waiting
        waiting = [(name, one) for name, one in _led_by_others(args, client) if (name, one.partition) in begun]
        now_ms = clock.monotonic_ms()
        still_ms = None if any(list(one.target) == list(one.replicas) for _, one in waiting) else still_ms or now_ms
        if not waiting or (still_ms is not None and now_ms - still_ms > _REPLACED_MS):
            return ""
        return f"{counted(len(waiting), 'partition')} left: {some_of([f'{name}-{one.partition}' for name, one in waiting])}"

    _wait(args, left, "TOPIC PARTITION")
    return [(name, one.partition) for name, one in waiting]


def elect_leaders(args: argparse.Namespace) -> None:
    """Makes the preferred leader (the first replica) lead each partition. Raises UsageError, and BrokerdError if one cannot."""
    _check_timeout(args)
    refused: dict[tuple[str, int], WireError] = {}
    with connect_to_change(args) as client:
        found = _led_by_others(args, client)
        due = [(name, one) for name, one in found if one.replicas and one.replicas[0] in one.isr and not one.target]
        for name, one in due:
            try:
                client.reassign_partition(name, one.partition, (), is_order_only=True)
            except WireError as error:
                if error.retriable:
                    raise
                refused[name, one.partition] = error  # for example if the caller may only read the topic
        begun = {(name, one.partition) for name, one in due} - refused.keys()
        if args.wait:
            stopped = InvalidRequestError("the move was stopped or replaced, or its disk refuses")
            refused.update(dict.fromkeys(_wait_for_leaders(args, client, begun), stopped))
    begun -= refused.keys()
    due = [(name, one) for name, one in due if (name, one.partition) in begun]
    staying = [(name, one) for name, one in found if (name, one.partition) not in begun]
    document = {
        "moving": [{"topic": name, "partition": one.partition, "leader": one.replicas[0]} for name, one in due],
        "staying": [{"topic": name, "partition": one.partition, "leader": known(one.leader)} for name, one in staying],
        "is_done": args.wait,
    }
    lines = _election_lines(args, due, staying, refused)
    show(args, document, lines or ["every partition is led by its preferred leader"])
    if staying:
        why = next((error.message for error in refused.values()), "try again later")
        raise ClientError(f"{counted(len(staying), 'partition')} cannot be led by the preferred leader now: {why}")


def _election_lines(
    args: argparse.Namespace, due: Iterable[_Named], staying: Iterable[_Named], refused: Mapping[tuple[str, int], WireError]
) -> list[str]:
    verb = "is" if args.wait else "will be"
    lines = [f"{name}-{one.partition} {verb} led by node {one.replicas[0]}" for name, one in due]
    for name, one in staying:
        why = "etcd names no replicas of it"  # such as a topic created after the snapshot that etcd was restored from
        if one.replicas:
            why = f"it moves to {listed(one.target)}" if one.target else f"node {one.replicas[0]} is not in sync"
        if (name, one.partition) in refused:
            why = refused[name, one.partition].message
        leader = f"with node {one.leader}" if one.leader != NO_LEADER else "without a leader"
        lines.append(f"{name}-{one.partition} stays {leader}: {why}")
    return lines


def _node_ids(args: argparse.Namespace) -> tuple[int, ...]:
    texts = args.replicas.split(",")
    if not all(is_number(text, INT32_MAX) for text in texts):
        raise usage_error(args, f"--replicas takes node ids such as 1,2,3, not '{args.replicas:.200}'")
    if len(set(map(int, texts))) < len(texts):
        raise usage_error(args, f"--replicas names a node twice in '{args.replicas}': a node has one copy of a partition")
    return tuple(map(int, texts))


def _move(args: argparse.Namespace, client: BlockingClient, replicas: Sequence[int], *, is_leader_enough: bool) -> None:
    name, clock = f"{args.topic}-{args.partition}", SystemClock()
    others_ms: int | None = None  # since when the partition's target is not `replicas`

    def left() -> str:
        nonlocal others_ms
        now, now_ms = _partition_now(args, client), clock.monotonic_ms()
        is_led = not replicas or now.leader == replicas[0]
        is_there = not now.target and (not replicas or list(now.replicas) == list(replicas))
        if is_led and (is_leader_enough or is_there or _has_grown_again(args.topic, before, now, replicas)):
            return ""
        others_ms = None if list(now.target) == list(replicas) else others_ms or now_ms
        if replicas and others_ms is not None and now_ms - others_ms > _REPLACED_MS:
            if is_there and not is_leader_enough:
                return ""  # the move is complete, but the new leader has stopped since
            instead = f"it is on {listed(now.replicas)}, led by {dashed(now.leader)}"
            if now.target:
                instead = f"it moves to {listed(now.target)}"
            raise ClientError(f"{name} does not move to {listed(replicas)} any more: {instead}")
        if now.no_copy_alive:
            moves = sorted(now.replicas) != sorted(replicas)
            what = f"to move from {listed(now.replicas)} to {listed(replicas)}" if moves else f"for node {replicas[0]} to lead it"
            raise ClientError(f"{name} waits {what}: {now.error.message}")
        missing = [node_id for node_id in now.target or replicas if node_id not in now.isr]
        what = f"not in sync yet: {listed(missing)}" if missing else "about to change"
        return f"{name}: {listed(now.replicas)} -> {listed(replicas)}, {what}"

    before = _partition_now(args, client)
    client.reassign_partition(args.topic, args.partition, replicas, is_order_only=is_leader_enough)
    if args.wait:
        _wait(args, left, f"{args.topic} {args.partition}")
    goal = f"nodes {listed(replicas)}" if len(replicas) > 1 else f"node {listed(replicas)}"
    line = f"{name} {'is on' if args.wait else 'moves to'} {goal}" if replicas else f"{name} stays where it is"
    if is_leader_enough:
        line = f"{name} {'is' if args.wait else 'will be'} led by node {args.node}"
    document = {"topic": args.topic, "partition": args.partition, "target": list(replicas), "is_done": args.wait}
    show(args, document, [line])


def _has_grown_again(topic: str, before: PartitionMetadata, now: PartitionMetadata, replicas: Sequence[int]) -> bool:
    """True if an internal partition was moved to `replicas` and is growing again to default.replication.factor."""
    is_begun = list(now.replicas[: len(replicas)]) == list(replicas) and list(now.target) != list(replicas)
    return topic.startswith(INTERNAL_PREFIX) and bool(replicas) and is_begun and now.leader_epoch > before.leader_epoch


def _partition_now(args: argparse.Namespace, client: BlockingClient) -> PartitionMetadata:
    """A partition's metadata, as one node sees it. Raises BrokerdError."""
    (topic,) = _described(client, [args.topic]).topics
    found = next((one for one in topic.partitions if one.partition == args.partition), None)
    if found is None:
        last = len(topic.partitions) - 1
        raise UnknownTopicOrPartitionError(f"topic '{args.topic}' has partitions 0 to {last}, not {args.partition}")
    return found


def drain(args: argparse.Namespace) -> None:
    """Moves all partitions of a node to other nodes. Raises UsageError, and BrokerdError also if a partition stays."""
    if args.wait and args.dry_run:
        raise usage_error(args, "--dry-run moves nothing that --wait could wait for")
    _check_timeout(args)
    if args.node < 0:
        raise usage_error(args, f"a node id is 0 or more, not {args.node}: 'brokerd cluster nodes' prints them")
    with connect_to_change(args) as client:

        def drained() -> DrainNodeResponse:  # also moves partitions created since the last call
            return client.drain_node(args.node, validate_only=args.dry_run)

        done = drained()

        def left() -> str:
            nonlocal done
            try:
                done = drained()
            except InvalidRequestError:  # a dead node without replicas is unknown to the cluster
                done = DrainNodeResponse()
                return ""
            waiting = len(done.waiting) + done.more_waiting
            if waiting and waiting == done.moving:
                first = done.waiting[0]
                raise ClientError(
                    f"{counted(waiting, 'partition')} of node {args.node} cannot be moved at present, the first is "
                    f"{first.name}-{first.partition}: {first.reason}"
                )
            return f"node {args.node}: {counted(done.moving, 'partition')} left" if done.moving else ""

        begun = done.moving
        if args.wait:
            _wait(args, left, "TOPIC PARTITION")
    staying = len(done.staying) + done.more_staying
    document = {
        "node_id": args.node,
        "moving": done.moving,
        "staying": [_named_document(one) for one in done.staying],
        "staying_count": staying,
        "waiting": [_named_document(one) for one in done.waiting],
        "waiting_count": len(done.waiting) + done.more_waiting,
    }
    if args.dry_run:
        document["going"] = [{"topic": one.name, "partition": one.partition} for one in done.going]
    show(args, document, _drain_lines(args, begun, done))
    if staying:
        them = "it" if staying == 1 else "them"
        raise ClientError(
            f"{counted(staying, 'partition')} of node {args.node} cannot move: give {them} fewer copies with 'brokerd cluster "
            "reassign', or add a node first"
        )


def _named_document(one: NamedPartition) -> dict[str, Any]:
    return {"topic": one.name, "partition": one.partition, "reason": one.reason or None}


def _drain_lines(args: argparse.Namespace, begun: int, done: DrainNodeResponse) -> Iterator[str]:
    verb = "would move" if args.dry_run else "moved" if args.wait else "move"
    verb += "s" if verb == "move" and begun == 1 else ""
    yield f"node {args.node}: {counted(begun, 'partition')} {verb} to other nodes"
    for one in done.going:
        yield f"  {one.name}-{one.partition} would move"
    if done.more_going:
        yield f"  and {done.more_going} more"
    for one in done.staying:
        yield f"  {one.name}-{one.partition} stays" + (f": {one.reason}" if one.reason else "")
    if done.more_staying:
        yield f"  and {done.more_staying} more"
    for one in done.waiting:
        yield f"  {one.name}-{one.partition} waits: {one.reason}"


def elect_unclean(args: argparse.Namespace) -> None:
    """Elects a replica that is not in sync; refused while an in-sync replica is alive. Raises BrokerdError."""
    with connect_to_change(args) as client:
        replicas = _partition_now(args, client).replicas
        copies = client.elect_unclean_leader(args.topic, args.partition, validate_only=args.dry_run)
    leader, name = copies[0], f"{args.topic}-{args.partition}"
    missing = sorted(set(replicas).difference(copy.node_id for copy in copies))
    document = {
        "topic": args.topic,
        "partition": args.partition,
        "leader": leader.node_id,
        "log_end_offset": leader.log_end_offset,
        "copies": [
            {
                "node_id": copy.node_id,
                "leader_epoch": known(copy.leader_epoch),
                "log_end_offset": copy.log_end_offset,
                "is_damaged": copy.has_stopped,
            }
            for copy in copies
        ],
        "missing": missing,
        "is_done": not args.dry_run,
    }
    rows = [(copy.node_id, dashed(copy.leader_epoch), copy.log_end_offset, "yes" if copy.has_stopped else NONE) for copy in copies]
    led, lost = ("would be led", "would be lost") if args.dry_run else ("is led", "is lost")
    lines = [f"{name} {led} by node {leader.node_id}", table(("NODE", "EPOCH", "END", "DAMAGED"), rows, indent="  ")]
    if missing:
        lines.append(f"  no copy on {nodes_text(missing)}, or no answer from there")
    lines.append(f"this copy ends at offset {leader.log_end_offset}: what was acknowledged and is not in it {lost}")
    show(args, document, lines)


def _check_timeout(args: argparse.Namespace) -> None:
    if args.timeout_ms is not None and not args.wait:
        raise usage_error(args, "--timeout-ms says how long to --wait: give both")
    if args.timeout_ms is not None and args.timeout_ms < 0:
        raise usage_error(args, f"--timeout-ms must not be negative, as {args.timeout_ms} is")


def _wait(args: argparse.Namespace, left: Callable[[], str], which: str) -> None:
    """Waits until `left` returns an empty text; prints the text every 3 s. Raises ClientError after --timeout-ms. `which`: topic
    and partition, as arguments of the command that stops the move.
    """
    clock = SystemClock()
    began_ms, tell_ms = clock.monotonic_ms(), 0
    try:
        while text := left():
            now_ms = clock.monotonic_ms()
            if args.timeout_ms is not None and now_ms - began_ms >= args.timeout_ms:
                raise ClientError(f"not done within {args.timeout_ms} ms, and going on: {text}")
            if now_ms >= tell_ms:
                note(text)
                tell_ms = now_ms + _TELL_MS
            time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        note(f"only the wait has ended, the move goes on: 'brokerd cluster reassign {which} --stop' would stop it")
        raise
