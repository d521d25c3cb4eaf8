"""Chaos: the real daemon under load and faults, its history recorded and judged. `make chaos` runs it with one node, `make
chaos-cluster` with three, `make chaos-network` with three whose network fails. Of these, make test runs two faults of the last."""
