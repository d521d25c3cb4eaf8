"""One file per request. Each starts with a description of the broker's behaviour.

    produce.py, fetch.py                    records in and out
    metadata.py, list_offsets.py            what clients look up
    server_info.py                          versions, features, limits
    init_producer_id.py                     a producer id for idempotence
    create_topics.py, delete_topics.py, create_partitions.py, alter_topic_configs.py, describe_topics.py, delete_records.py

A unary handler is `async def handle(broker, request) -> response`. Produce and Fetch are parts of their streams
(../streams/), which own order, back-pressure and waiting.
"""
