"""Streams of one client: requests and responses in order.

produce_stream.py  order, back-pressure, responses in order
fetch_stream.py    at most one parked fetch
client_stream.py   the state that both kinds share
messages.py        reads a message of a stream
"""
