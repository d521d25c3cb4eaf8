"""An installation holds what the tree holds. A source distribution is built from a copy of the tree, and a wheel from that, without
a network, and both are compared with the tree. A fresh clone works before anything is installed, and pip installs it, editable and
not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from brokerd import __version__
from tests.test_repo import ROOT, tracked

_SHIPPED = (".py", ".pyi", "py.typed", ".service")
_PACKAGES = ("brokerd/", "pyspark_brokerd/", "sink/", "datasource/")
_LINKS = {"brokerd/sink": "../sink", "brokerd/datasource": "../datasource"}
_MODULES = ("brokerd.sink.writer", "brokerd.datasource.source", "brokerd.server.daemon", "pyspark_brokerd")
_DIST_INFO = f"brokerd-{__version__}.dist-info"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git tracks, without the rest of a working directory."""
    tree = tmp_path_factory.mktemp("tree")
    for name in tracked():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name, follow_symlinks=False)
    for name in _LINKS:
        shutil.copy(ROOT / name, tree / name, follow_symlinks=False)
    return tree


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    out = tmp_path_factory.mktemp("sdist")
    (file,) = built("--sdist", tree, out)
    with tarfile.open(out / file) as archive:
        archive.extractall(out, filter="data")
    return out / f"brokerd-{__version__}"


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked; made from the source distribution, as pip makes it where there is no wheel."""
    out = tmp_path_factory.mktemp("wheel")
    (file,) = built("--wheel", sdist, out)
    assert file == f"brokerd-{__version__}-py3-none-any.whl"
    zipfile.ZipFile(out / file).extractall(out / "unpacked")
    return out / "unpacked"


def built(kind: str, tree: Path, out: Path) -> list[str]:
    """The names of what was built."""
    # A copy: building leaves files behind, which would be in the next thing that is built.
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(tree, f"{scratch}/tree", symlinks=True)
        build = [sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", str(out), f"{scratch}/tree"]
        done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [path.name for path in out.iterdir()]


def place_in_wheel(name: str) -> str:
    """Where a file of the tree is once installed."""
    return f"brokerd/{name}" if name.startswith(("sink/", "datasource/")) else name


def places_of_modules(python: str, *options: str) -> list[str]:
    """The files from which an interpreter imports modules of each package."""
    program = f"import importlib, sys\nprint(*[importlib.import_module(name).__file__ for name in {_MODULES!r}], sep='\\n')"
    done = subprocess.run([python, *options, "-B", "-c", program], cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


def in_folder(folder: Path) -> list[str]:
    """The same files as they are in a folder of packages."""
    names = (f"{name.replace('.', '/')}.py" for name in _MODULES)
    return [str(folder / (name if (folder / name).exists() else name.replace(".py", "/__init__.py"))) for name in names]


def test_a_clone_has_links_where_a_build_moves_folders() -> None:
    assert {name: str((ROOT / name).readlink()) for name in _LINKS} == _LINKS
    if (ROOT / ".git").exists():  # a link that git ignores is missing in a clone
        listed = subprocess.run(["git", "ls-files", "--stage", *_LINKS], cwd=ROOT, capture_output=True, text=True, check=True)
        assert {line.split("\t")[1]: line.split()[0] for line in listed.stdout.splitlines()} == dict.fromkeys(_LINKS, "120000")


def test_a_clone_can_be_imported_before_anything_is_installed(tree: Path, tmp_path: Path) -> None:
    assert places_of_modules(fresh_python(tmp_path, tree)) == in_folder(tree)


@pytest.mark.parametrize("options", [[], ["--editable"]], ids=["installed", "editable"])
def test_pip_alone_installs_a_clone(tree: Path, tmp_path: Path, options: list[str]) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(tree, clone, symlinks=True)
    python = fresh_python(tmp_path)
    pip = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", *options, str(clone)]
    done = subprocess.run(pip, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    installed = next(tmp_path.glob("fresh/lib/python3.*")) / "site-packages"
    assert places_of_modules(python) == in_folder(clone if options else installed)
    printed = subprocess.run([tmp_path / "fresh" / "bin" / "brokerd", "--version"], capture_output=True, text=True, check=True)
    assert printed.stdout == f"brokerd {__version__}\n"


def fresh_python(tmp_path: Path, *places: Path) -> str:
    """An interpreter of a new environment. It finds pip, the build backend and brokerd's dependencies where the tests find them,
    and the given folders before those."""
    venv.create(tmp_path / "fresh", with_pip=False)
    libraries = Path(sysconfig.get_path("purelib"))
    (site,) = (tmp_path / "fresh" / "lib").glob("python3.*/site-packages")
    # A path in a .pth file is searched; the .pth files in it, an editable brokerd among them, are not read.
    (site / "tests.pth").write_text("".join(f"{place}\n" for place in (*places, libraries)))
    return str(tmp_path / "fresh" / "bin" / "python")


def test_the_source_distribution_holds_what_the_tree_holds(sdist: Path) -> None:
    held = {str(path.relative_to(sdist)) for path in sdist.rglob("*") if path.is_file()}
    assert sorted(set(tracked()) - held) == [], "in the tree, not in the source distribution"
    assert sorted(held - set(tracked()) - {"PKG-INFO"}) == [], "in the source distribution, not in the tree"


def test_an_installation_prints_its_sample_configuration_and_its_unit(wheel: Path, tmp_path: Path) -> None:
    command = tmp_path / "bin" / "brokerd"  # as pip makes it
    command.parent.mkdir()
    command.write_text(
        f"#!{sys.executable} -IB\nimport sys\nsys.path.insert(0, {str(wheel)!r})\nfrom brokerd.cli import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)

    def printed(option: str) -> str:
        return subprocess.run([command, "config", option], capture_output=True, text=True, check=True).stdout

    assert printed("--sample") == (ROOT / "conf" / "brokerd.toml").read_text()
    shipped = (ROOT / "conf" / "brokerd.service").read_text()
    assert printed("--systemd-unit") == shipped.replace("=/opt/brokerd/bin/brokerd start", f"={command} start")
    assert f"={command} start --config" in printed("--systemd-unit")


def test_the_wheel_holds_what_the_tree_holds(wheel: Path) -> None:
    expected = {place_in_wheel(name) for name in tracked() if name.startswith(_PACKAGES) and name.endswith(_SHIPPED)}
    held = {str(path.relative_to(wheel)) for path in wheel.rglob("*") if path.is_file() and _DIST_INFO not in path.parts}
    assert sorted(expected - held) == [], "in the tree, not in the wheel"
    assert sorted(held - expected) == [], "in the wheel, not in the tree"
    for needed in ("brokerd/py.typed", "brokerd/sink/__init__.py", "brokerd/datasource/__init__.py", "brokerd/aio/__init__.py"):
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


def test_pytest_finds_the_fixtures_of_an_installation(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import brokerd\n"
        "def test_it(brokerd_topic):\n"
        f"    assert brokerd.__file__.startswith({str(wheel)!r})\n"
        "    brokerd_topic.append(['v'])\n"
        "    assert [row.value for row in brokerd_topic.rows()] == [b'v']\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(wheel), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_every_module_of_the_wheel_can_be_imported_and_the_broker_needs_no_spark(wheel: Path) -> None:
    modules = sorted(str(p.relative_to(wheel).with_suffix("")).replace("/", ".") for p in wheel.rglob("*.py"))
    modules = [name.removesuffix(".__init__") for name in modules if not name.endswith("__main__")]
    of_spark = ("brokerd.sink", "brokerd.datasource", "brokerd.spark", "pyspark_brokerd")
    broker = [name for name in modules if not name.startswith(of_spark)]
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
