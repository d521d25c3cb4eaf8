"""The server's side of transactions: what the pure coordinator (brokerd/transaction) decides is made durable here, in order.

transactions.py     one broker's transactions: decide, record, wait for the disk, answer; recovery, expiry, the sweep
local_leaders.py    the partitions of this node: data of open members, markers
lost_markers.py     markers that damage has taken, as a start finds them
"""
