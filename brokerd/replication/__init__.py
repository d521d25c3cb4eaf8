"""The copies of partitions, as decisions without I/O, clocks or calls: what a leader makes of what its followers report
(leader.py), what a follower does with what its leader tells it (follower.py), and how replicas come and go at an operator's word
(reassignment.py). Who leads is decided in cluster/election.py. server/replication carries all of this out.
"""
