"""The coordination store of a cluster: etcd (v3.4 or newer), through the few of its calls that a cluster needs.

    client.py  connections and fail-over; reads, transactions, watches, leases
    v3/        generated from proto/

What the keys mean does not belong here (cluster/).
"""

from brokerd import wire as wire  # before gRPC: see there
