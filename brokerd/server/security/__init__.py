"""Authenticates callers and decides what they may do. In the order in which a call passes through:

    credentials.py        loads the auth file and the certificates (auth_file.py, tokens.py)
    authenticator.py      token or certificate -> principal (certificate_names.py: the names in a certificate)
    call_authorizer.py    whether the call may be made: its caller, its method's rule, the audit trail
    method_rules.py       the rights that each method needs: the only table
    topic_authorizer.py   the rights of one principal: to topics, groups and producer ids
    audit.py              records refusals and changes

The principal comes from the call alone, never from a field of a request. Only handlers of groups and transactions check rights
themselves (method_rules.py). Streams authenticate once, and each partition of each request is one look-up in a set. Errors, logs
and reprs never contain a secret, clients learn of internal errors by number only, and control characters in log lines are
escaped.

SIGHUP reloads certificates and the auth file, once all of it has been checked. They apply to new handshakes and calls; rights apply
to open streams too. A stream whose token or certificate name no longer belongs to its principal ends with UNAUTHENTICATED, after
the responses to what it wrote. A certificate itself is checked only in its handshake: to refuse one on an open connection, remove
its name from the auth file, or restart.
"""
