"""Who is calling, and what they may do. In the order in which a call passes:

    setup.py           builds it all out of the settings
    credentials.py     certificates as gRPC and the metrics endpoint take them
    authenticator.py   a call's token or certificate -> a principal (certificate_names.py)
    tokens.py          bearer tokens and their hashes
    auth_file.py       principals, hashed tokens and rights, read from TOML
    permissions.py     rights on topics by pattern; pure
    access.py          one principal's decisions about this broker's topics, remembered
    rules.py           what every method of the contract needs: the one table
    callers.py         a gRPC call -> what its caller may do
    guard.py           applies a rule to a unary request: refuses entries, hides what may not be seen
    producer_owners.py which principal a producer id belongs to
    audit.py           who was refused what, and who changed what (audited_changes.py: what a call has changed)
    gate.py            what is not the broker's own service: health is open, the rest is for the authenticated

The principal comes from the call alone, never from a field of a request. Handlers decide nothing here.
"""
