"""Generates brokerd/wire/v1, brokerd/internode/v1 and brokerd/coordination/v3 from the folders of the same names in proto/;
`--check` exits with 1 if the checked-in files differ.

Only messages are generated (`*_pb2.py` and `*_pb2.pyi`): the service is registered by hand in brokerd/wire/methods.py, since
Produce and Fetch are encoded by hand. Nothing else belongs in these folders.

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
_PACKAGES = (Path("brokerd/wire/v1"), Path("brokerd/internode/v1"), Path("brokerd/coordination/v3"))
_COMPILER_PYTHON = _ROOT / ".venv-gen" / "bin" / "python"


def generate(out: Path) -> list[str]:
    """Compiles every .proto into `out`; returns the generated file names, relative to it. Raises RuntimeError if protoc fails."""
    sources = sorted(str(path.relative_to(_PROTO)) for package in _PACKAGES for path in (_PROTO / package).glob("*.proto"))
    command = [_python(), "-m", "grpc_tools.protoc", f"-I{_PROTO}", f"--python_out={out}", f"--pyi_out={out}", *sources]
    done = subprocess.run(command, check=False)  # noqa: S603 (our own program)
    if done.returncode != 0:
        raise RuntimeError(f"protoc failed with status {done.returncode}")
    return _generated(out)


def _generated(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for package in _PACKAGES for path in (root / package).glob("*_pb2.py*"))


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
    return differing + sorted(set(_generated(_ROOT)) - set(fresh))


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
