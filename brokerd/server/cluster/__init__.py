"""This node in its cluster: the shell around the rules of brokerd/cluster, on the coordination store.

membership.py  the cluster's id, this node's registration, and the image that follows the store
directory.py   keeps the data directory in agreement with the image
topics.py      topics changed by any node
controller.py  holds the elections and sweeps, at the node that holds the key
calls.py       calls to other nodes
adoption.py    makes the directory of a node alone the first of a cluster
node.py        all of these as one, what handlers ask of them, and what happens to the cluster, in the log
alone.py       the same answers for a node without a cluster
"""
