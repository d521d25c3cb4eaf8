"""Authenticates callers and decides what they may do. In the order in which a call passes:

    credentials.py        the auth file and the certificates that the settings name (auth_file.py, tokens.py)
    authenticator.py      who calls: a token or certificate -> a principal (certificate_names.py: the names in one)
    call_authorizer.py    whether the call may be made: its caller, its method's rule, the audit trail
    method_rules.py       what every method of the contract needs: the one table
    topic_authorizer.py   what one principal may do: to topics, to groups, with producer ids
    audit.py              writes down refusals and changes

The principal comes from the call alone, never from a field of a request. Handlers decide nothing here. Streams authenticate once,
and each partition of each request is one look-up in a set. Errors, logs and reprs never contain a secret, clients learn of
internal errors by number only, and control characters in log lines are escaped.

SIGHUP reloads certificates and the auth file, after all of it was checked. New handshakes and calls use it, and so do rights on
open streams. A stream whose token or certificate name no longer belongs to its principal ends with UNAUTHENTICATED, after the
responses to what it wrote. A certificate itself is checked in its handshake alone: to refuse one on an open connection, remove its
name from the auth file, or restart.
"""
