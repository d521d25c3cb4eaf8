"""The server's side of transactions: makes the decisions of the pure coordinator (brokerd/transaction) durable, in order.

transactions.py     one broker's transactions: decide, append, wait for durability, respond; recovery, expiry, the sweep
local_leaders.py    the partitions of this node: open members' data, markers, and those lost to damage
"""
