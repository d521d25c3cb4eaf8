"""Checks whether a tag may be published: it must match the version and have a changelog section. Standard library only.

python tests/support/release.py v1.2.3"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def version(root: Path = _ROOT) -> str:
    """The version in brokerd/__init__.py, parsed without an import, as the build does. Raises ValueError if there is none."""
    for node in ast.parse((root / "brokerd" / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__":
            return str(ast.literal_eval(node.value))
    raise ValueError("brokerd/__init__.py has no __version__")


def problem_of(tag: str, root: Path = _ROOT) -> str | None:
    """Why `tag` may not be published, and what to do; None if it may."""
    current = version(root)
    if tag != f"v{current}":
        return f"the tag is '{tag}', and brokerd/__init__.py says {current}: set __version__, commit, and tag v{current}"
    if not re.search(rf"^## {re.escape(current)} - \d{{4}}-\d\d-\d\d$", (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        return f"CHANGELOG.md has no heading '## {current} - YYYY-MM-DD': give what stands under Unreleased its version and date"
    return None


if __name__ == "__main__":
    sys.exit(problem_of(sys.argv[1] if len(sys.argv) > 1 else ""))
