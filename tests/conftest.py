"""What holds for all tests. Fixtures live beside the tests that use them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How fast a machine is decides about no test: neither about one example's time nor about how long examples take to make. And
# nothing is remembered from one run to the next.
settings.register_profile("brokerd", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("brokerd")
