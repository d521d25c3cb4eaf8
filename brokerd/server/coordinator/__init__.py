"""The server's side of the coordinator: makes the decisions of the pure one (brokerd/coordinator) durable, in order.

log.py              the coordinator's log: a partition of an internal topic
transactions.py     one broker's transactions: decide, append, wait for durability, respond; recovery, expiry, the sweep
groups.py           one broker's groups: the offsets that they commit
local_leaders.py    the partitions of this node: open members' data, markers, and those lost to damage
"""
