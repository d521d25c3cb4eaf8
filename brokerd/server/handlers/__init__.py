"""The handlers of requests, one module per subject. The module or each handler begins with what the contract of its messages
(proto/brokerd/wire/v1/) does not say of its behaviour.

    produce.py, fetch.py                    records in and out
    metadata.py, list_offsets.py            look-ups: topics, partitions, limits, offsets
    topics.py                               changes of topics
    transactions.py                         producer ids, heartbeats and decisions, for producers and drivers
    transaction_admin.py                    views and administration of transactions, for operators and owners of ids
    groups.py                               consumer groups' offsets

A unary handler is `async def name(broker, authorizer, request) -> response` (`handle` for the request that names its module). It
begins with the checks of the contract, which raise MalformedError before any right is looked up: a malformed request is refused
alike whoever sends it. Then it requires the right to each entry before it does anything with it, and writes the audit trail's line
of each change. Produce and Fetch are streams (../streams.py has what they share).
"""
