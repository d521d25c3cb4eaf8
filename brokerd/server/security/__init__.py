"""Authenticates callers and decides what they may do. In the order in which a call passes through:

    credentials.py        loads the auth file and the certificates (tokens.py: their hashes)
    authenticator.py      token or certificate -> principal -> its authorizer
    topic_authorizer.py   the rights of one principal: to topics, groups and producer ids
    audit.py              records refusals and changes

The principal comes from the call alone, never from a field of a request. Handlers require the right to each entry of a request
before they handle it; tests/integration/security/test_rights.py checks every method's refusals. Streams authenticate once, and each
partition of each request is one look-up in a set. Errors, logs and reprs never contain a secret, clients learn of internal errors
by number only, and control characters in log lines are escaped.

SIGHUP reloads certificates and the auth file, once all of it has been checked. They apply to new handshakes and calls; rights apply
to open streams too. A stream whose token or certificate name no longer belongs to its principal ends with UNAUTHENTICATED, after
the responses to its requests. A certificate itself is checked only in its handshake: to refuse one on an open connection, remove
its name from the auth file, or restart.
"""
