"""Request handlers, one module per subject. Their docstrings describe behaviour beyond the contract of the messages
(proto/brokerd/wire/v1/).

    produce.py, fetch.py                    records in and out
    metadata.py, list_offsets.py            look-ups: topics, partitions, limits, offsets
    topics.py                               changes of topics
    transactions.py                         producer ids, heartbeats and decisions, for producers and drivers
    transaction_admin.py                    views and administration of transactions, for operators and owners of ids
    groups.py                               consumer groups' offsets

A unary handler is `async def name(broker, authorizer, request) -> response` (`handle` for the request that names its module). It
first checks the contract and raises MalformedError before any right is looked up: a malformed request gets the same error from
every caller. It then requires the right to each entry before it handles the entry, and records each change in the audit trail.
Produce and Fetch are streams (../streams.py has their shared state).
"""
