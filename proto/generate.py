"""Generates brokerd/wire/v1 from proto/brokerd/wire/v1; `--check` exits 1 if what is checked in differs.

Only messages are generated (`*_pb2.py` and `*_pb2.pyi`): the service is registered by hand in
brokerd/wire/methods.py, since Produce and Fetch are encoded by hand. Nothing may live here but that.
"""

from __future__ import annotations

import filecmp
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

_PROTO = Path(__file__).resolve().parent
_ROOT = _PROTO.parent
_PACKAGE = Path("brokerd/wire/v1")


def generate(out: Path) -> list[str]:
    """Compiles every .proto into `out`; returns the generated file names, relative to it. Raises RuntimeError if protoc fails."""
    sources = sorted(str(path.relative_to(_PROTO)) for path in (_PROTO / _PACKAGE).glob("*.proto"))
    status = protoc.main(["protoc", f"-I{_PROTO}", f"--python_out={out}", f"--pyi_out={out}", *sources])
    if status != 0:
        raise RuntimeError(f"protoc failed with status {status}")
    return sorted(str(path.relative_to(out)) for path in (out / _PACKAGE).glob("*_pb2.py*"))


def stale() -> list[str]:
    """Names of generated files that differ from what is checked in, are missing there, or should be gone."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
        differing = [
            name
            for name in fresh
            if not (_ROOT / name).exists() or not filecmp.cmp(Path(scratch) / name, _ROOT / name, shallow=False)
        ]
    present = {str(path.relative_to(_ROOT)) for path in (_ROOT / _PACKAGE).glob("*_pb2.py*")}
    return differing + sorted(present - set(fresh))


def main() -> int:
    """Command line: regenerate, or with --check compare only."""
    if "--check" in sys.argv[1:]:
        differing = stale()
        for name in differing:
            sys.stderr.write(f"{name} is not what its .proto makes: run `make gen`\n")
        return 1 if differing else 0
    generate(_ROOT)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
