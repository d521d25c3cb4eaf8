"""The version is stated in one place, only its tag can be published, and tools and actions are pinned."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import brokerd
from tests.support.release import problem_of, version
from tests.support.requirements import of_extra

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ("dev", "docs", "gen")


def tree(at: Path, *, current: str, changelog: str) -> Path:
    (at / "brokerd").mkdir()
    (at / "brokerd" / "__init__.py").write_text(f'"""Doc."""\n__version__ = "{current}"\n')
    (at / "CHANGELOG.md").write_text(changelog)
    return at


def test_the_version_is_read_without_an_import() -> None:
    assert version() == brokerd.__version__


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert project["dynamic"] == ["version"]


def test_the_guides_install_this_version() -> None:
    named = {found for page in (ROOT / "docs").glob("*.md") for found in re.findall(r"brokerd-(\d[\w.]*?)-py3", page.read_text())}
    assert named == {brokerd.__version__}


def test_the_tag_of_the_version_may_be_published(tmp_path: Path) -> None:
    root = tree(tmp_path, current="1.2.3", changelog="## Unreleased\n\n## 1.2.3 - 2020-01-31\n")
    assert problem_of("v1.2.3", root) is None


def test_another_tag_may_not(tmp_path: Path) -> None:
    root = tree(tmp_path, current="1.2.3", changelog="## 1.2.3 - 2020-01-31\n")
    for tag in ("v1.2.4", "1.2.3", "v1.2.3rc1", ""):
        problem = problem_of(tag, root)
        assert problem is not None
        assert f"'{tag}'" in problem


def test_nor_one_that_the_changelog_does_not_know(tmp_path: Path) -> None:
    root = tree(tmp_path, current="1.2.3", changelog="## Unreleased\n\n## 1.2.30 - 2020-01-31\n## 1.2.3\n")
    problem = problem_of("v1.2.3", root)
    assert problem is not None
    assert "## 1.2.3 - YYYY-MM-DD" in problem


def test_every_tool_is_of_one_version() -> None:
    tools = [line for extra in TOOLS for line in of_extra(extra) if not line.startswith("brokerd[")]
    assert [line for line in tools if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9.]*", line)] == []


def test_every_action_is_pinned_by_commit() -> None:
    used = [
        (path.name, line.strip())
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if re.match(r"\s*(- )?uses:", line)
    ]
    assert used
    loose = [one for one in used if not re.search(r"uses: ([\w.-]+/[\w./-]+@[0-9a-f]{40} # v[0-9.]+|\./\S+)$", one[1])]
    assert loose == []


def test_the_workflow_runs_each_python_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r":: Python :: 3\.\d+$", c)}
    matrix = re.search(r"python: \[(.*)\]", (ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert matrix is not None
    assert set(re.findall(r"[\d.]+", matrix[1])) == named
    assert f">={min(named, key=lambda v: int(v.partition('.')[2]))}" == project["requires-python"]


def test_the_workflows_call_targets_that_there_are() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        assert set(re.findall(r"run: make ([a-z-]+)", path.read_text())) <= targets, path.name
