"""The server's side of transactions: what the pure coordinator (brokerd/transaction) decides is made durable here, in order.

transactions.py     one broker's transactions: decide, record, wait for the disk, answer; recovery, expiry, the sweep
transaction_log.py  the transaction log: its entries and its state
local_leaders.py    the partitions of this node: data of open members, markers
lost_markers.py     markers that damage has taken, as a start finds them
id_locks.py         decisions on one transactional id, one after the other
retries.py          when a commit that could not be finished is tried again
views.py            what operators are told
fields.py           checks of fields that the requests share
"""
