"""The parts that every call to a broker needs.

connection.py       one gRPC channel: unary calls, raw streams, status codes as errors
security.py         TLS and tokens: the client's identity, and the broker's
response_checks.py  checks of a broker's responses
"""
