"""Lets pages of the site link to files of the repository as they would on the hosting: `../conf/brokerd.toml` from docs/.

The site has docs/ alone. A file outside that a page links to is published under repository/, and links are turned that way, in
Markdown that comes from there (ARCHITECTURE.md and its like) as well. A link to what does not exist stays as it is, so that
mkdocs complains of it. Only mkdocs loads this file, with its own interpreter.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "tests/crash/README.md")  # listed in mkdocs.yml
_LINK = re.compile(r"(\]\()(?!\w+:|#|/)([^)#\s]+)(#[^)\s]*)?(\))")


def on_files(files: Files, config: Any, **_: object) -> Files:
    """Adds what pages link to."""
    wanted = set(PAGES)
    texts = [("docs/" + file.src_uri, Path(str(file.abs_src_path)).read_text()) for file in files.documentation_pages()]
    for source, text in [*texts, *((name, (ROOT / name).read_text()) for name in PAGES)]:
        wanted |= {target for target in targets(source, text) if not target.startswith("docs/") and (ROOT / target).is_file()}
    for name in sorted(wanted):
        files.append(File.generated(config, f"repository/{name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Turns links to files of the repository to where the site has them."""
    here = page.file.src_uri
    source = in_repository(here)

    def turned(link: re.Match[str]) -> str:
        target = resolved(source, link[2])
        if not (ROOT / target).is_file():
            return link[0]
        place = target.removeprefix("docs/") if target.startswith("docs/") else f"repository/{target}"
        return link[1] + posixpath.relpath(place, posixpath.dirname(here) or ".") + (link[3] or "") + link[4]

    return _LINK.sub(turned, markdown)


def in_repository(uri: str) -> str:
    """A page's place in the repository, by its place in the site."""
    return uri.removeprefix("repository/") if uri.startswith("repository/") else f"docs/{uri}"


def targets(source: str, text: str) -> set[str]:
    """The files that a page links to, as places in the repository."""
    return {resolved(source, link[2]) for link in _LINK.finditer(text)}


def resolved(source: str, link: str) -> str:
    """Where a relative link in `source` leads."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
