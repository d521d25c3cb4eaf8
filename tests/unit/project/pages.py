"""The repository's Markdown pages and their links. No assertions here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return _FENCE.sub("", page.read_text())


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """File and anchor of each link within the repository; for `#anchor`, the file is the page itself."""
    for target, anchor in _LINK.findall(prose(page)):
        yield (page.parent / target).resolve() if target else page, anchor


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, in the repository and on the site."""
    titles = re.findall(r"^#{1,6} (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title.strip().lower())) for title in titles}


def blocks(page: Path, *languages: str) -> Iterator[tuple[str, str, str]]:
    """Language, title and text of each code block in one of `languages`."""
    found = re.findall(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```$', page.read_text(), re.MULTILINE | re.DOTALL)
    for language, title, text in found:
        if language in languages:
            yield language, title, text
