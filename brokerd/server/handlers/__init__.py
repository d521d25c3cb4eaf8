"""One file per request, or for a few of one kind. Each starts with a description of the broker's behaviour.

    produce.py, fetch.py                    records in and out
    metadata.py, list_offsets.py            what clients look up: topics, partitions, limits, offsets
    topics.py                               changes of topics
    init_producer_id.py                     a producer id for idempotence, or for a member of a transaction
    end_transaction.py, heartbeat.py        a transaction's decision, and that somebody works on it
    list_transactions.py, describe_transaction.py, abort_transaction.py, forget_transactional_id.py, find_hanging_transactions.py
    commit_group_offsets.py, fetch_group_offsets.py, list_groups.py, describe_group.py, delete_group.py

A unary handler is `async def handle(broker, authorizer, request) -> response`, and `check(request)` raises MalformedError for a
request that no correct client sends. Produce and Fetch are streams (../streams.py has what both share).
"""
