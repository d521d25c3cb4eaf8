"""The rules of replication, as decisions without I/O, clocks or calls: what a leader derives from its followers' reports
(leader.py), what a follower does with its leader's responses (follower.py), and how an operator moves replicas (reassignment.py).
cluster/election.py elects leaders; server/replication does the I/O. The rules, and what goes wrong without them:

Followers' reports
- A follower reports what it has fsynced. The leader counts a report only if both logs agree up to the follower's end: the
  follower's last epoch is in the leader's log and does not end earlier there (KIP-101). Otherwise a divergent tail would count as a
  copy.
- A report is valid for one directory and one leader epoch, and no replica joins by it after its stream has ended: the disk may have
  been emptied since, or the node stopped.
- A follower cuts its divergent tail completely before it appends, never below its high watermark. It cuts nothing if it was in sync
  when an operator elected an older copy: its last acknowledged records may lie above the high watermark it knows. No copy cuts
  after etcd was rolled back (restored from a backup): its in-sync replicas may lack records that others have (`outdone` in
  cluster/election.py).
- A response, and the cut it asks for, takes effect only in the role and epoch in which it was requested: either may come late.

The high watermark and the in-sync set
- The high watermark is the lowest durable end of the in-sync set, of a replica about to join, and of one about to leave: etcd may
  have made a change whose response is lost. It advances only while min.insync.replicas are in sync (at least two for the
  coordinator's log).
- Only the leader changes the in-sync set, by compare-and-set on the partition's entry. Until the entry changes, a proposal may
  still be applied. So if a joining replica is gone, the leader rewrites the entry, and a late transaction fails its comparison.
- To join, a replica needs everything below the high watermark, everything the log held when the epoch began (the previous leader
  may have acknowledged it), and the log start, so that deleted records stay deleted. It does not join if it would leave again at
  once. The same transaction compares its registration.
- A replica leaves at once if its registration has ended, its node has another directory, it has less than it reported to this
  leader or an earlier one (it ends below the high watermark), or its log has stopped. It leaves after replica.lag.time.max.ms
  without reaching the end of the log.
- Until the high watermark reaches the start of its epoch, a new leader answers `latest` with OFFSET_NOT_AVAILABLE, and a new
  coordinator does not load its log: records above the high watermark may be lost with this leader.

Adding and removing replicas
- Removing replicas begins a new leader epoch, even under the same leader. A node that is added again has removed its copy
  meanwhile, and must not join by its earlier reports.
- min.insync.replicas is capped at the number of replicas, and one that has never been in sync does not count: a partition with one
  copy would refuse appends while it moves.
- A node that gets a replica back first removes its earlier copy. Otherwise it would keep that copy, damaged or not.
- A copy that is empty or ends below the log start starts over, with a snapshot of the producers whose batches it will not receive.
- The leader decides log start, retention, rolls by time and producer expiry, and tells followers the log start. DeleteRecords waits
  until all in-sync replicas have it.

Stopping nodes and failing disks
- A stopping node names the next leaders itself, follows them, and stays in sync until its registration ends. So no one waits for
  its lease, and if the next leader loses its disk, the stopped node has the records.
- A node whose disk has refused appends or failed reads for five seconds says so in its registration. It hands over to in-sync
  replicas on working disks, and is elected only if there are none. It stays in sync while it has every record: if all disks are
  full, an election gains nothing and uses up the spare files. A follower whose disk refuses the leader's batches leaves after as
  long.
- A node whose copy can neither lead nor follow leaves the in-sync set, if the leader is alive or another can be elected.
- To a replica that is not in sync the leader may send records that are long on disk. It checks their payloads and stops its log at
  a corrupt one, which the follower would request for ever.
"""
