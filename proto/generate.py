"""Generates brokerd/wire/v1 from proto/brokerd/wire/v1; `--check` exits 1 if what is checked in differs.

Only messages are generated (`*_pb2.py` and `*_pb2.pyi`): the service is registered by hand in
brokerd/wire/methods.py, since Produce and Fetch are encoded by hand. Nothing may live here but that.

The compiler (grpcio-tools) is of one version, so that all make the same files, and it holds protobuf back; what is made runs
on all that pyproject.toml allows. So it lives in an environment of its own, .venv-gen, and tests run with what users get.
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
    """The interpreter that has the compiler. Raises RuntimeError without one."""
    if _COMPILER_PYTHON.exists():
        return str(_COMPILER_PYTHON)
    if importlib.util.find_spec("grpc_tools") is None:
        raise RuntimeError("there is no protobuf compiler: `make setup` installs one, into .venv-gen")
    return sys.executable


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
