"""The cluster as its coordination store describes it, and the decisions that follow. All of it is pure: keys in, decisions out.

    keys.py         the keys of a cluster, and the format of their values
    image.py        the cluster at one revision, folded from its keys: nodes, topics, partitions, the controller
    election.py     placement of a new topic's replicas, and leader election when nodes come and go
    changes.py      topics created, grown, altered and deleted, as transactions on the store
    assignments.py  what a data directory must do to match the cluster

The caller watches the keys, feeds the image, and writes each decision under a comparison of the revisions that it rests on.
"""
