"""The server's side of the coordinator: makes the decisions of the pure one (brokerd/coordinator) durable, in order.

host.py             hosts the coordinator while this node leads its log
log.py              the coordinator's log: a partition of an internal topic
transactions.py     its transactions: decide, append, wait for durability, respond; expiry, the sweep
producer_ids.py     producer ids, reserved in the log
groups.py           its groups: the offsets that they commit
leaders.py          what it asks of the leaders of all partitions; markers lost to damage
members.py          the leader's side: open members' data in the partitions of this node, holds, markers

A transaction over several leaders, step by step:

first batch     the leader asks the coordinator whether the member is open (VerifyMembers), and checks again at the append, without
                an await in between
commit          the coordinator stops verifying the members, freezes them at all leaders (FreezeMembers), and decides by what is
                below the high watermarks; each partition that is listed needs its leader's answer
decision        durable in the coordinator's log, with the partitions that it holds back
markers         into these partitions and no others, since what else there may be of the members was not counted; each leader sets
                its hold in the same step (WriteMarkers)
release         once all markers are durable, leader by leader (Release), in one step at each
leader starts   it shows nothing behind the last stable offset that was announced before, if that is of a transaction, until the
                coordinator names no prepared commit there (PreparedHolds), or has released those that it named: their Release may
                have gone to the leader before
refusals,       told once the store says that this node is the coordinator still, or else its log, by an entry of its own:
what is read    another one may have decided otherwise. Needless while no other replica of the log is in sync: nobody else can have
                been elected
fencing         requests and control batches carry the coordinator's epoch, and a leader refuses lower ones
nobody's data   of a member that is neither open nor prepared: void; all leaders are asked for it (OpenMembers, OpenData)
"""
