"""Client of a cluster's coordination store, etcd v3.4 or newer, limited to the calls that a cluster needs.

    client.py  connections and fail-over; reads, transactions, watches, leases
    v3/        generated from proto/

The meaning of the keys is defined in cluster/.
"""

from brokerd import wire as wire  # must be imported before gRPC: see its __init__
