"""Streams of one client: requests in order, answers in order.

produce_stream.py  order, back-pressure, answers in order
fetch_stream.py    at most one parked fetch
messages.py        reading a message of a stream
"""
