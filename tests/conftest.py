"""What holds for all tests. Fixtures live beside the tests that use them."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

# How fast a machine is decides about no test: neither about one example's time nor about how long examples take to make. And
# nothing is remembered from one run to the next.
settings.register_profile("brokerd", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("brokerd")

# A shell's background jobs ignore SIGINT, and all that they start does too: here Ctrl-C works wherever the tests were started.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the project's own."""
    parser.addoption("--rewrite", action="store_true", help="write what scenarios lead to now into their files")


@pytest.fixture(scope="session")
def is_rewriting(pytestconfig: pytest.Config) -> bool:
    """True if scenarios are rewritten instead of compared."""
    return bool(pytestconfig.getoption("rewrite"))
