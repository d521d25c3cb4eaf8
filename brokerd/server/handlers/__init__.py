"""One file a request: what the broker does with it. Each begins with its behaviour.

A unary handler is `async def handle(broker, request) -> response`. Produce and Fetch are parts of their streams
(../produce_stream.py, ../fetch_stream.py), which own order, back-pressure and waiting.
"""
