"""Requirements read from pyproject.toml for the Makefile: the users' at their lowest versions, and those of an extra."""

from __future__ import annotations

from tests.support.requirements import lowest, of_extra


def test_every_dependency_of_users_has_a_lowest_version() -> None:
    names = [line.partition("==")[0] for line in lowest()]
    assert {"grpcio", "protobuf", "pyarrow", "pyspark"} <= set(names)
    assert all(line.count("==") == 1 for line in lowest())


def test_what_makes_code_is_kept_apart_from_what_tests_run_with() -> None:
    (compiler,) = of_extra("gen")
    assert compiler.startswith("grpcio-tools==")
    assert not [line for line in of_extra("dev") if line.startswith(("grpcio-tools", "protobuf"))]
