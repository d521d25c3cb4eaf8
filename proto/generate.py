"""Generates brokerd/wire/v1 from proto/brokerd/wire/v1; `--check` exits with 1 if the checked-in files differ.

Only messages are generated (`*_pb2.py` and `*_pb2.pyi`): the service is registered by hand in brokerd/wire/methods.py, since
Produce and Fetch are encoded by hand. Nothing else belongs in brokerd/wire/v1.

The compiler (grpcio-tools) is pinned, so that everyone generates the same files, and it requires an old protobuf; the generated
code runs on all versions that pyproject.toml allows. So the compiler has its own environment, .venv-gen, and tests run with the
versions that users get.
"""

from __future__ import annotations

import filecmp
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

_PROTO = Path(__file__).resolve().parent
_ROOT = _PROTO.parent
_PACKAGE = Path("brokerd/wire/v1")
_COMPILER_PYTHON = _ROOT / ".venv-gen" / "bin" / "python"


def generate(out: Path) -> list[str]:
    """Compiles every .proto into `out`; returns the generated file names, relative to it. Raises RuntimeError if protoc fails."""
    sources = sorted(str(path.relative_to(_PROTO)) for path in (_PROTO / _PACKAGE).glob("*.proto"))
    command = [_python(), "-m", "grpc_tools.protoc", f"-I{_PROTO}", f"--python_out={out}", f"--pyi_out={out}", *sources]
    done = subprocess.run(command, check=False)  # noqa: S603 (our own program)
    if done.returncode != 0:
        raise RuntimeError(f"protoc failed with status {done.returncode}")
    return sorted(str(path.relative_to(out)) for path in (out / _PACKAGE).glob("*_pb2.py*"))


def _python() -> str:
    """The interpreter that has the compiler. Raises RuntimeError if there is none."""
    if _COMPILER_PYTHON.exists():
        return str(_COMPILER_PYTHON)
    if importlib.util.find_spec("grpc_tools") is None:
        raise RuntimeError("no protobuf compiler found: `make setup` installs one into .venv-gen")
    return sys.executable


def stale() -> list[str]:
    """Names of generated files that differ from the checked-in ones, are missing, or should be gone."""
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
    """The command line: regenerate, or with --check only compare."""
    if "--check" in sys.argv[1:]:
        differing = stale()
        for name in differing:
            sys.stderr.write(f"{name} is out of date: run `make gen`\n")
        return 1 if differing else 0
    generate(_ROOT)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
