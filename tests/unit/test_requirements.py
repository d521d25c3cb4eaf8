"""`make test-lowest` installs what pyproject.toml allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.requirements import lowest, of_extra


def test_every_dependency_of_users_has_a_lowest_version() -> None:
    names = [line.partition("==")[0] for line in lowest()]
    assert {"grpcio", "protobuf", "pyarrow", "pyspark"} <= set(names)
    assert all(line.count("==") == 1 for line in lowest())


def test_a_dependency_without_one_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(
        '[project]\ndependencies = ["numpy>=1.26,<3", "grpcio"]\noptional-dependencies = {spark = [], completion = [], top = []}\n'
    )
    with pytest.raises(ValueError, match=r"'grpcio' in pyproject\.toml has no lowest version"):
        lowest(file)


def test_what_makes_code_is_kept_apart_from_what_tests_run_with() -> None:
    (compiler,) = of_extra("gen")
    assert compiler.startswith("grpcio-tools==")
    assert not [line for line in of_extra("dev") if line.startswith(("grpcio-tools", "protobuf"))]
