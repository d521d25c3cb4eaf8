"""Authenticates callers and decides what they may do. In the order in which a call passes:

    setup.py             builds it all out of the settings
    credentials.py       certificates as gRPC and the metrics endpoint take them
    interceptors.py      answers unknown methods, and admits only authenticated callers to all but health and the broker's service
    authenticator.py     a call's token or certificate -> a principal (certificate_names.py)
    tokens.py            bearer tokens and their hashes
    auth_file.py         principals, hashed tokens and rights, read from TOML
    topic_rights.py      a principal's rights on topics and groups, by name or prefix; pure
    call_authorizer.py   a gRPC call -> the TopicAuthorizer of its caller, or a refusal
    topic_authorizer.py  decides what one principal may do to each topic, and remembers it
    method_rules.py      what every method of the contract needs: the one table
    request_filter.py    applies a method's rule to a unary request: takes out refused entries, hides what may not be seen
    producer_owners.py   which principal a producer id belongs to
    audit.py             writes down refusals and changes (audited_changes.py: what a call has changed)

The principal comes from the call alone, never from a field of a request. Handlers decide nothing here. Streams authenticate once,
and each partition of each request is one look-up in a set. Errors, logs and reprs never contain a secret, clients learn of
internal errors by number only, and control characters in log lines are escaped.

SIGHUP reloads certificates and the auth file, after all of it was checked. New handshakes and calls use it, and so do rights on
open streams. A stream whose token or certificate name no longer belongs to its principal ends with UNAUTHENTICATED, after the
responses to what it wrote. A certificate itself is checked in its handshake alone: to refuse one on an open connection, remove its
name from the auth file, or restart.
"""
