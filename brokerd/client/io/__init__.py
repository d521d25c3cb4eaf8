"""The parts that every call to a broker needs.

connection.py       gRPC to one address: unary calls, raw streams, status codes as errors
security.py         TLS and tokens: authenticates the client and the broker
response_checks.py  checks of a broker's responses
"""
