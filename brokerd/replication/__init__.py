"""The copies of partitions, as decisions without I/O, clocks or calls: what a leader makes of what its followers report
(leader.py), what a follower does with what its leader tells it (follower.py), and how replicas come and go at an operator's word
(reassignment.py). Who leads is decided in cluster/election.py. server/replication carries all of this out.

The rules, and what goes wrong without them:

What followers report
- A follower reports what it has fsynced. The leader counts a report only if both logs agree up to its end: its last epoch is in
  the leader's log and does not end below it (KIP-101). Otherwise a divergent tail would count as a copy.
- A report is of one directory, in one leader epoch, and nobody joins by it once its stream has ended. Otherwise an emptied disk, a
  node that stops or a leader's earlier epoch would speak for others.
- A follower cuts what differs completely, and then appends. It never cuts below its high watermark. One that was in sync when an
  older copy was elected, by command, cuts nothing: what it had acknowledged last may lie above the high watermark that it knows.
  So does any copy once the store has gone back (cluster/election.py, outdone): who is in sync by it may lack what others have.
- An answer, and the cut that it asks for, count only in the role and epoch in which they were asked for: a deposed leader's answer
  may come late, or wait its turn.

The high watermark and the in-sync set
- The high watermark is the lowest durable end of the in-sync set, of a replica that is about to join, and of one that is about to
  leave: the store may have made a change whose answer is lost. It moves only while min.insync.replicas are in sync; for the
  coordinator's log, two at least.
- Only the leader proposes changes of the set, by compare-and-set on the entry. Until the entry changes, a proposal may still be
  made. So if a joiner has gone, the entry is written anew, and a late transaction finds another revision.
- To join, a replica needs all below the high watermark, and all that the log had when the epoch began, which the leader before may
  have acknowledged. It needs the log start, too: what is deleted stays deleted. One that would leave at once does not join. Its
  registration is compared in the same transaction.
- A replica leaves at once if its node has ended, has another directory, or has less than it had reported, or if its log has
  stopped; after replica.lag.time.max.ms, if it has not reached the end of the log.
- A new leader answers `latest` with OFFSET_NOT_AVAILABLE, and the coordinator does not load its log, until the high watermark has
  reached the start of the epoch: what lies above may vanish with this leader.

Replicas that come and go
- Whenever replicas go, a new leader epoch begins, also under the same leader. A node that is added again has removed its copy
  meanwhile, and would join by what it had reported before.
- A replica that was added and has never been in sync counts neither towards min.insync.replicas nor as one of those that there are:
  a partition of one copy would take nothing while it moves.
- A node that is given a copy back first removes the one that it had. Otherwise it would keep it, damaged or not.
- An empty copy, or one that ends below the log start, begins anew, with a snapshot of the producers whose batches it will not see.
- Log start, retention, rolls by time and expiry of producers are the leader's; a follower hears of the log start. DeleteRecords
  waits until all in sync have it.

Nodes that stop, disks that fail
- A node that stops names the next leaders itself, follows them, and stays in sync until its registration ends. So nobody waits for
  a lease; and if the next leader has just lost its disk, the records are where the node stopped.
- A node whose disk has refused appends, or failed to read, for five seconds says so in its registration. It hands over to replicas
  in sync whose disks do not, and is elected only if there is none. It stays in sync while it has everything: if all disks are full,
  nobody has less, and elections would help nobody and use up the spare files. A follower whose disk refuses what it gets leaves
  after as long.
- A node whose copy can neither lead nor follow leaves, if the leader is alive or another one can be named.
- A replica that is not in sync gets records that may have lain on the disk for long. The leader checks their payloads, and stops at
  a changed one, which the follower would ask for again and again.
"""
