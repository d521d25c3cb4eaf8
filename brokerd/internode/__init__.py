"""The messages that nodes of a cluster send each other about transactions, generated from proto/brokerd/internode."""
