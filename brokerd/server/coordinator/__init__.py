"""The server's side of the coordinator: makes the decisions of brokerd/coordinator, which is pure, durable in order.

host.py             hosts the coordinator while this node leads its log
log.py              the coordinator's log: a partition of an internal topic
transactions.py     transactions: decide, append, wait for durability, respond; expiry, the sweep
producer_ids.py     producer ids, reserved in the log
groups.py           groups and their committed offsets
leaders.py          the coordinator's calls to the leaders of all partitions; markers lost to damage
members.py          the leader's side: open members' data in this node's partitions, holds, markers

A transaction over several leaders, step by step:

first batch     the leader asks the coordinator whether the member is open (VerifyMembers), and checks again at the append, without
                an await in between
commit          the coordinator stops verifying the members, freezes them at all leaders (FreezeMembers), and decides by their data
                below the high watermarks; the leader of each listed partition must answer
decision        durable in the coordinator's log, with the partitions that it holds back
markers         written to these partitions only, since data of the members elsewhere was not counted; each leader sets its hold
                in the same step (WriteMarkers)
release         once all markers are durable, leader by leader (Release), in one step at each
leader starts   if transactional records follow the last stable offset that was announced before, it stays there until the
                coordinator names no prepared commit there (PreparedHolds), or has released those it named: their Release may have
                gone to the previous leader
refusals,       answered once etcd confirms that this node is still the coordinator, or else once a new entry in its log is
reads           durable: another coordinator may have decided otherwise. Not needed while no other replica of the log is in sync,
                since no other node can have been elected
fencing         requests and control batches carry the coordinator's epoch, and a leader refuses lower ones
orphaned data   of a member that is neither open nor prepared: void; all leaders are asked for it (OpenMembers, OpenData)
"""
