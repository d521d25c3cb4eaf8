"""What a user installs is what the tree holds: a wheel is built from a copy of the tree, without a network, and compared.

Packages are listed by hand in pyproject.toml, since sink/ and datasource/ are mapped; a forgotten one would be missing in
the wheel alone, where no other test looks.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from brokerd import __version__
from tests.test_repo import ROOT, tracked

_SHIPPED = (".py", ".pyi", "py.typed")
_DIST_INFO = f"brokerd-{__version__}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in tracked():
        if name.startswith(("brokerd/", "sink/", "datasource/", "README", "LICENSE", "pyproject")):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(tree)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (file,) = out.glob("*.whl")
    assert file.name == f"brokerd-{__version__}-py3-none-any.whl"
    zipfile.ZipFile(file).extractall(out / "unpacked")
    return out / "unpacked"


def place_in_wheel(name: str) -> str:
    """Where a file of the tree is once installed."""
    if name.startswith("datasource/pyspark_brokerd/"):
        return name.removeprefix("datasource/")
    return f"brokerd/{name}" if name.startswith(("sink/", "datasource/")) else name


def test_the_wheel_holds_what_the_tree_holds(wheel: Path) -> None:
    expected = {
        place_in_wheel(name)
        for name in tracked()
        if name.startswith(("brokerd/", "sink/", "datasource/")) and name.endswith(_SHIPPED)
    }
    held = {str(path.relative_to(wheel)) for path in wheel.rglob("*") if path.is_file() and _DIST_INFO not in path.parts}
    assert sorted(expected - held) == [], "in the tree, not in the wheel: list its package in pyproject.toml"
    assert sorted(held - expected) == [], "in the wheel, not in the tree"
    for needed in ("brokerd/py.typed", "brokerd/sink/__init__.py", "brokerd/datasource/__init__.py", "pyspark_brokerd/__init__.py"):
        assert needed in held
    assert any(name.endswith("_pb2.pyi") for name in held)


def test_nothing_takes_a_name_of_others_at_the_top(wheel: Path) -> None:
    assert {path.name for path in wheel.iterdir()} == {"brokerd", "pyspark_brokerd", _DIST_INFO}


def test_spark_is_an_extra_and_the_command_is_there(wheel: Path) -> None:
    metadata = Parser().parsestr((wheel / _DIST_INFO / "METADATA").read_text())
    needs = metadata.get_all("Requires-Dist") or []
    assert [need for need in needs if need.startswith("pyspark") and "extra" not in need] == []
    assert any(need.startswith("pyspark") and "extra == 'spark'" in need.replace('"', "'") for need in needs)
    assert "brokerd = brokerd.cli:main" in (wheel / _DIST_INFO / "entry_points.txt").read_text()


def test_every_module_of_the_wheel_can_be_imported_and_the_broker_needs_no_spark(wheel: Path) -> None:
    modules = sorted(str(p.relative_to(wheel).with_suffix("")).replace("/", ".") for p in wheel.rglob("*.py"))
    modules = [name.removesuffix(".__init__") for name in modules if not name.endswith("__main__")]
    broker = [name for name in modules if not name.startswith(("brokerd.sink", "brokerd.datasource", "pyspark_brokerd"))]
    program = (
        "import importlib, sys\n"
        f"sys.path.insert(0, {str(wheel)!r})\n"
        f"for name in {broker!r}: importlib.import_module(name)\n"
        "assert 'pyspark' not in sys.modules, 'the broker imports pyspark'\n"
        f"for name in {modules!r}:\n"
        f"    assert importlib.import_module(name).__file__.startswith({str(wheel)!r}), name\n"
    )
    # -B: what is compiled here would be taken for what the wheel holds.
    done = subprocess.run([sys.executable, "-I", "-B", "-c", program], cwd=wheel, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
