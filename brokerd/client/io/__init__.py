"""What every call to a broker needs.

connection.py   one gRPC channel: unary calls, raw streams, status codes turned into errors
security.py     TLS and tokens: who this client is, whom it trusts
retry.py        how long to wait, when to give up (pure)
answers.py      what a broker's answer must be before it is believed
loop_thread.py  an event loop in a thread of its own
"""
