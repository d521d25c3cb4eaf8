"""Chaos: the real daemon under load and faults, its history recorded and judged. `make chaos` runs it; not part of make test."""
