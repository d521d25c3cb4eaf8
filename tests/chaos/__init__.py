"""Chaos tests: a real daemon under load and injected faults, its history recorded and checked. `make chaos` runs one node, `make
chaos-cluster` three, `make chaos-network` three with network faults. `make test` runs two network faults."""
