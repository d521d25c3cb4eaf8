"""Copies of partitions on several nodes, carried out: brokerd/replication decides.

leading.py   the partitions that this node leads: who is in sync, written to the coordination store
serving.py   the streams by which followers copy from this node
copying.py   the partitions that this node follows: one stream to each node that leads any of them
"""
