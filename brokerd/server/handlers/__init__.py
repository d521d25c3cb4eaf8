"""One file for the requests of one kind. The file, or each request's function, begins with a description of its behaviour.

    produce.py, fetch.py                    records in and out
    metadata.py, list_offsets.py            what clients look up: topics, partitions, limits, offsets
    topics.py                               changes of topics
    transactions.py                         producer ids, signs of life and decisions, from producers and drivers
    transaction_admin.py                    transactions, as operators and owners of ids see and end them
    groups.py                               how far groups have read

A unary handler is `async def name(broker, authorizer, request) -> response` (`handle` in a file of one request), and
`check_name(request)` raises MalformedError for a request that no correct client sends. Produce and Fetch are streams
(../streams.py has what both share).
"""
