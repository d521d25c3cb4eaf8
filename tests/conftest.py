"""Settings and hooks for all tests. Fixtures live beside the tests that use them."""

from __future__ import annotations

import asyncio
import inspect
import os
import resource
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.scale import TEST_SCALE
from tests.support.wait import DEADLINE_S

# How fast a machine is decides about no test: neither about one example's time nor about how long examples take to make. And
# nothing is remembered from one run to the next.
settings.register_profile("brokerd", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("brokerd")

# A shell's background jobs ignore SIGINT, and all that they start does too: here Ctrl-C works wherever the tests were started.
signal.signal(signal.SIGINT, signal.default_int_handler)

SLOW_S = 5


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Workers take tests one by one. Those that share a fixture of their module stay together, so that it is made once."""
    for item in items:
        definitions = item._fixtureinfo.name2fixturedefs.values() if isinstance(item, pytest.Function) else ()
        if any(definition.scope == "module" for each in definitions for definition in each):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in an event loop of its own, and fails at the deadline if it hangs."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})

    asyncio.run(bounded())
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Holds the mark `slow`, by processor time: several times what the mark says, as a machine may be slow, and busy."""
    before_s = _processor_time_s()
    result = yield
    is_slow = any(item.get_closest_marker(mark) for mark in ("slow", "long"))
    taken_s = _processor_time_s() - before_s
    if taken_s > 6 * SLOW_S and not is_slow and TEST_SCALE == 1:
        pytest.fail(f"it took {taken_s:.0f} s of processor time: mark it slow, or make it quicker than {SLOW_S} s", pytrace=False)
    return result


def _processor_time_s() -> float:
    """Of this process, and of its children that have ended."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`: half as many workers again as there are processors, for tests wait half of their time, for daemons and clocks."""
    return max(2, len(os.sched_getaffinity(0)) * 3 // 2)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the project's own."""
    parser.addoption("--rewrite", action="store_true", help="write what scenarios lead to now into their files")


@pytest.fixture(scope="session")
def is_rewriting(pytestconfig: pytest.Config) -> bool:
    """True if scenarios are rewritten instead of compared."""
    return bool(pytestconfig.getoption("rewrite"))
