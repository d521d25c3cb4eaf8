"""Chaos: the real daemon under load and faults, its history recorded and judged. `make chaos` runs it with one node, `make
chaos-cluster` with three; not part of make test."""
