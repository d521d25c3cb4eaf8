"""The cluster as its coordination store describes it, and what follows from that. All of it is pure: keys in, decisions out.

    keys.py         the keys of a cluster, and what their values hold
    image.py        the cluster at one revision, folded from its keys: nodes, topics, partitions, the controller
    election.py     which nodes hold the partitions of a new topic, and who leads a partition when nodes come and go
    changes.py      topics created, grown, altered and deleted, as transactions of the store
    assignments.py  what a data directory has to do to agree with the cluster

Whoever watches the keys feeds the image, and writes what is decided under a comparison of the revision that the decision rests on.
"""
