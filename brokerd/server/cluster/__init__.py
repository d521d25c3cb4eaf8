"""This node in its cluster: the I/O around the rules of brokerd/cluster, on the coordination store.

membership.py  the cluster's id, this node's registration, and the image that follows the store
directory.py   keeps the data directory in line with the image
topics.py      changes of topics, made by any node
controller.py  elections and sweeps, on the node that is the controller
calls.py       calls to other nodes
adoption.py    makes a standalone node's directory the first of a cluster
node.py        runs all of these, answers the handlers' questions, and logs what happens to the cluster
alone.py       the same interface for a standalone node
"""
