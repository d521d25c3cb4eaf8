"""Replication between nodes, carried out. brokerd/replication decides.

leading.py   the partitions that this node leads: their in-sync sets, written to etcd
serving.py   the streams by which followers copy from this node
copying.py   the partitions that this node follows: one stream to each node that leads any of them
"""
