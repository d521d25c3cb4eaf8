"""Documentation pages: links resolve, the site's menu is complete, and Troubleshooting covers each error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from brokerd import errors
from brokerd.errors import ClientError, ErrorCode
from tests.unit.project.pages import DOCS, PAGES, ROOT, anchors, blocks, links

SPARKS_AND_PYTHONS = {"PYSPARK_PYTHON", "JAVA_GATEWAY_EXITED", "DATA_SOURCE_NOT_FOUND", "ModuleNotFoundError"}
GUIDES = sorted(DOCS.glob("*.md"))
_PROTO = (ROOT / "proto" / "brokerd" / "wire" / "v1" / "error.proto").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        f"{target.relative_to(ROOT)}#{anchor}"
        for target, anchor in links(page)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert broken == []


def test_the_menu_lists_every_page_once() -> None:
    listed = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    own = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    repository = {name.removeprefix("repository/") for name in listed if name.startswith("repository/")}
    assert {name for name in listed if not name.startswith("repository/")} == own
    assert all((ROOT / name).is_file() for name in repository)
    assert all(f'"{name}"' in (DOCS / "links.py").read_text() for name in repository)


def test_troubleshooting_has_a_word_on_each_error_that_there_is_today() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    later = set(re.findall(r"// Reserved.*\n(?:  // .*\n)*  ERROR_CODE_(\w+) =", _PROTO))
    today = [code.name for code in ErrorCode if 0 < code < ErrorCode.INVALID_TXN_STATE and code.name not in later]
    assert [name for name in today if f"`{name}`" not in text] == []
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, ClientError)]
    raised = [cls.__name__ for cls in classes if cls is not ClientError]
    spoken_for = {"ConfigError"}  # its message contains the remedy
    assert [name for name in raised if f"`{name}`" not in text and name not in spoken_for] == []


def test_troubleshooting_names_no_error_that_there_is_not() -> None:
    text = (DOCS / "troubleshooting.md").read_text()
    named = set(re.findall(r"`([A-Z]+(?:_[A-Z]+)+|[A-Z]\w+Error)`", text))
    known = {code.name for code in ErrorCode} | set(vars(errors)) | SPARKS_AND_PYTHONS
    assert named - known == set()


def test_no_two_guides_write_the_same_file_or_directory() -> None:
    """A reader may follow several guides in one directory."""
    owners: dict[str, str] = {}
    clashes = [
        f"{name} is of {guide.name} and of {owners[name]}"
        for guide in GUIDES
        for name in sorted(_written_by(guide))
        if owners.setdefault(name, guide.name) != guide.name
    ]
    assert clashes == []


def _written_by(guide: Path) -> set[str]:
    """Files, data directories and checkpoints of the commands and programs that a reader runs."""
    names = {title for _, title, _ in blocks(guide, "python", "toml", "yaml") if title}
    for language, title, text in blocks(guide, "bash", "python"):
        if language == "bash":
            names |= {found.strip("./") for found in re.findall(r"--data-dir (\S+)", text)}
        elif title:
            names |= set(re.findall(r'"checkpointLocation", "([^"]+)"', text))
    return names


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_a_guide_shows_a_program_before_it_runs_it(guide: Path) -> None:
    shown: set[str] = set()
    for language, title, text in blocks(guide, "bash", "python"):
        if language == "bash":
            assert set(re.findall(r"^python (\S+\.py)", text, re.MULTILINE)) <= shown
        else:
            shown.add(title)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_a_guide_stops_the_brokers_that_it_starts(guide: Path) -> None:
    """Otherwise the next guide's broker finds its address in use."""
    commands = "\n".join(text for _, _, text in blocks(guide, "bash"))
    assert commands.rfind("brokerd start") <= commands.rfind("kill %")
