"""The server's side of the coordinator: makes the decisions of the pure one (brokerd/coordinator) durable, in order.

host.py             hosts the coordinator while this node leads its log
log.py              the coordinator's log: a partition of an internal topic
transactions.py     its transactions: decide, append, wait for durability, respond; expiry, the sweep
producer_ids.py     producer ids, reserved in the log
groups.py           its groups: the offsets that they commit
leaders.py          what it asks of the leaders of all partitions; markers lost to damage
members.py          the leader's side: open members' data in the partitions of this node, holds, markers
"""
