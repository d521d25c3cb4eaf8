"""The house rules that can be checked, one test each, with a plain message for every offence.

They cover all files that git tracks or would track. Style proper is ruff's and mypy's business; these rules are
beyond them: sizes, layers, clocks, forbidden imports, what must be written down.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import TypeGuard

import pytest

from tests.support.layers import allowed_imports, importer_of, project_imports

pytestmark = pytest.mark.xdist_group("test_repo.py")  # each file is parsed once

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES_MAX = 1000
FUNCTION_LINES_MAX = 60
PRODUCT = ("brokerd/", "sink/", "datasource/", "pyspark_brokerd/")
GENERATED = ("brokerd/wire/v1/", "brokerd/internode/v1/", "brokerd/coordination/v3/")
CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "process_time_ns"}
DATES = {"now", "utcnow", "today"}
CODE_BEARING_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "yaml"}
CODE_BEARING_CALLS = {"eval", "exec", "compile", "__import__"}
# In two halves each, so that this file does not hold what it looks for.
BANNED_WORDS = {
    "a path of somebody's machine": ["/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/"],
    "a name on a package index that may be anybody's": ["pip install brok" + "erd", "'brok" + "erd["],
    "a package registry's address or flag": ["pythonhosted" + ".org", "index" + "-url", "artifac" + "tory", "pypi" + ".org/simple"],
    "work left undone": ["TO" + "DO", "FIX" + "ME", "XX" + "X"],
    "a test that does not run": ["mark.sk" + "ip", "pytest.sk" + "ip(", "mark.xf" + "ail", "importor" + "skip"],
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def tracked() -> tuple[str, ...]:
    """Files of the project, relative to its root."""
    if not (ROOT / ".git").exists():  # a source distribution, unpacked
        ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines()] + ["PKG-INFO"]
        walked = (os.path.relpath(os.path.join(folder, name), ROOT) for folder, _, names in os.walk(ROOT) for name in names)
        return tuple(sorted(n for n in walked if not any(fnmatch(part, one) for part in n.split("/") for one in ignored)))
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return tuple(sorted(name for name in listed.stdout.splitlines() if (ROOT / name).is_file()))


@functools.cache
def parsed(name: str) -> ast.Module:
    """The syntax tree of a file, which lives as long as the tests: no collection needs to look at it again."""
    tree = ast.parse((ROOT / name).read_text(), filename=name)
    gc.freeze()
    return tree


@functools.cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """All of a file's syntax tree."""
    return tuple(ast.walk(parsed(name)))


def sources(*folders: str) -> list[str]:
    """Python files below `folders` (all, if none is given) that people write."""
    return [n for n in tracked() if n.endswith(".py") and not n.startswith(GENERATED) and (not folders or n.startswith(folders))]


def offences(found: Iterator[str]) -> None:
    """Fails with one line per offence."""
    lines = list(found)
    assert not lines, "\n" + "\n".join(lines)


def functions(tree: ast.Module) -> Iterator[Function]:
    """All functions, nested ones and methods too."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def called_name(call: ast.Call) -> str:
    """`f` of f(...), `a.f` of a.f(...) and of x.a.f(...)."""
    if isinstance(call.func, ast.Name):
        return call.func.id
    if isinstance(call.func, ast.Attribute):
        owner = call.func.value
        before = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
        return f"{before}.{call.func.attr}"
    return ""


def calls(name: str) -> Iterator[tuple[ast.Call, str]]:
    """Every call in a file, with the name that is called."""
    return ((node, called_name(node)) for node in nodes(name) if isinstance(node, ast.Call))


def imported_modules(name: str) -> Iterator[tuple[int, str]]:
    """Line and full name of every import; `from a import b` counts as a.b."""
    for node in nodes(name):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_files_are_short_enough_to_read() -> None:
    def found() -> Iterator[str]:
        for name in sources():
            lines = len((ROOT / name).read_text().splitlines())
            if lines > FILE_LINES_MAX:
                yield f"{name} has {lines} lines, more than {FILE_LINES_MAX}: split it by what its parts do"

    offences(found())


def test_functions_fit_a_screen() -> None:
    def found() -> Iterator[str]:
        for name in sources():
            for node in functions(parsed(name)) if not name.startswith("tests/") else ():
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    yield f"{name}:{node.lineno} {node.name} has {lines} lines, more than {FUNCTION_LINES_MAX}"

    offences(found())


def test_every_file_says_what_it_is() -> None:
    offences(
        f"{name} has no module docstring: say what lives there, and what must not"
        for name in sources()
        if parsed(name).body and not ast.get_docstring(parsed(name))
    )


def test_what_is_public_is_documented() -> None:
    offences(
        f"{name}:{node.lineno} {node.name} is public and has no docstring"
        for name in sources(*PRODUCT, "benchmarks/", "proto/")
        for node in undocumented(parsed(name))
    )


def undocumented(tree: ast.Module) -> Iterator[Function | ast.ClassDef]:
    """Public classes, functions and methods without a docstring. Spared are methods of a class with a base, whose documents
    the base has, and error classes, which have their comment in error.proto."""
    for node in tree.body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node) and not is_error_of_the_table(node):
            yield node
        if isinstance(node, ast.ClassDef) and not [base for base in node.bases if not is_value_base(base)]:
            for method in node.body:
                if isinstance(method, Function) and not method.name.startswith("_") and not ast.get_docstring(method):
                    yield method


def is_error_of_the_table(node: ast.AST) -> bool:
    """True for `class X(WireError): code = ErrorCode.Y`."""
    return isinstance(node, ast.ClassDef) and bool(node.bases) and ast.unparse(node.bases[0]) == "WireError"


def is_value_base(base: ast.expr) -> bool:
    """True for bases that bring no methods of their own meaning."""
    return ast.unparse(base).partition("[")[0] in ("NamedTuple", "Protocol", "Generic", "enum.Enum", "enum.IntEnum", "TypedDict")


def packages() -> Iterator[str]:
    """Folders of the product that are packages, the generated one left out."""
    return (name.removesuffix("/__init__.py") for name in sources(*PRODUCT) if name.endswith("/__init__.py"))


def unmapped(package: str, text: str, modules: list[str]) -> Iterator[str]:
    """Modules that a package's map leaves out, and names in it that do not exist."""
    words = set(re.findall(r"[\w/.]*\w(?:\.py\b|/(?!\w))", text))
    for module in modules:
        if module not in words:
            yield f"{package}/__init__.py does not name {module}: say in its docstring what it holds"
    for word in words:
        if not any((ROOT / base / word).exists() for base in (package, "brokerd", ".")):
            yield f"{package}/__init__.py names {word}, which is not there"


def test_each_package_names_its_modules() -> None:
    def found() -> Iterator[str]:
        for package in packages():
            below = {name.removeprefix(f"{package}/") for name in sources(f"{package}/")}
            modules = sorted({re.sub(r"/.*", "/", name) for name in below} - {"__init__.py"})
            yield from unmapped(package, ast.get_docstring(parsed(f"{package}/__init__.py")) or "", modules)

    offences(found())


def test_documents_name_files_that_are_there() -> None:
    def found() -> Iterator[str]:
        for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
            text = re.sub(r"^```.*?^```$", "", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)
            for path in re.findall(r"`((?:brokerd|sink|datasource|tests|proto|conf|docs|examples|benchmarks)/[\w./-]*)`", text):
                if not (ROOT / path).exists():
                    yield f"{name} names `{path}`, which is not there"
            for path, method in re.findall(r"`([\w/]+\.py)`, `[A-Z]\w+\.(\w+)`", text):
                if (ROOT / path).exists() and method not in {function.name for function in functions(parsed(path))}:
                    yield f"{name} names {method} of `{path}`, which has none"

    offences(found())


def test_imports_go_one_way() -> None:
    offences(
        f"{name}:{line} imports {module}: {importer_of(name)} may import only {', '.join(sorted(allowed_imports(name)))}"
        for name in sources(*PRODUCT)
        for line, package, module in project_imports(name, parsed(name))
        if package not in allowed_imports(name)
    )


def test_the_producers_decisions_know_neither_the_shell_nor_io() -> None:
    io = {"asyncio", "logging", "os", "socket", "threading", "time"}
    offences(
        f"{name}:{line} imports {module}: the core takes events and returns commands"
        for name in sources("brokerd/producer/core/")
        for line, module in imported_modules(name)
        if module.split(".")[0] in io or re.match(r"brokerd\.producer\.(?!core\.)|brokerd\.clock", module)
    )


def test_what_uses_a_data_directory_gets_its_parts() -> None:
    cluster = ("brokerd/server/cluster/node.py", "brokerd/server/cluster/adoption.py")
    assembly = ("brokerd/server/daemon.py", "brokerd/server/broker.py", *cluster)
    offences(
        f"{name}:{line} imports {module}: take the table of partitions, the topics or the time instead"
        for name in sources(*PRODUCT)
        if not name.startswith("brokerd/datadir/") and name not in assembly
        for line, _, module in project_imports(name, parsed(name))
        if module.startswith("brokerd.datadir.log_manager")
    )


@pytest.mark.parametrize(
    ("root", "folders"),
    [
        ("grpc", ("brokerd/server/", "brokerd/wire/", "brokerd/client/", "brokerd/coordination/", "brokerd/testing/")),
        ("pyspark", ("sink/", "datasource/")),
        ("tests", ()),
        ("benchmarks", ()),
    ],
)
def test_only_its_own_layers_import(root: str, folders: tuple[str, ...]) -> None:
    offences(
        f"{name}:{line} imports {module}; only {', '.join(folders) or 'nothing shipped'} may"
        for name in sources(*PRODUCT)
        for line, module in imported_modules(name)
        if module.partition(".")[0].partition("_")[0] == root and not (folders and name.startswith(folders))
    )


def test_the_core_of_a_partition_reaches_no_files() -> None:
    """Directly or through what it imports."""
    reached, left = set[str](), ["brokerd/partition/core.py"]
    while left:
        name = left.pop()
        reached.add(name)
        modules = {module for _, _, module in project_imports(name, parsed(name))}
        files = {f"{each.replace('.', '/')}.py" for module in modules for each in (module, module.rpartition(".")[0])}
        left += [file for file in files & set(sources(*PRODUCT)) if file not in reached and file not in left]
    assert {"brokerd/partition/producer_state.py", "brokerd/storage/segment_bounds.py"} <= reached
    assert not reached & {f"brokerd/storage/{name}.py" for name in ("files", "checksummed_file", "open_files", "segment")}


def test_only_a_partition_knows_its_core() -> None:
    offences(
        f"{name}:{node.lineno} reaches through a partition for its core: ask the Partition"
        for name in sources(*PRODUCT)
        if not name.startswith("brokerd/partition/")
        for node in nodes(name)
        if isinstance(node, ast.Attribute) and node.attr == "core"
    )


# Nothing that is imported here gets gRPC: what matters is the environment that it would read.
_IMPORTS_GRPC = """
import importlib, os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            raise ImportError("read " + os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "nothing"))
sys.meta_path.insert(0, Finder())
for module in sys.argv[1:]:
    os.environ.pop("GRPC_ENABLE_FORK_SUPPORT", None)
    for name in [name for name in sys.modules if name.startswith("brokerd")]:
        del sys.modules[name]
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(module, error)
"""


def test_grpc_is_imported_after_its_environment_is_set() -> None:
    importers = sorted(
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in sources(*PRODUCT)
        if any(module.partition(".")[0].partition("_")[0] == "grpc" for _, module in imported_modules(name))
    )
    done = subprocess.run([sys.executable, "-c", _IMPORTS_GRPC, *importers], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{module} read 0" for module in importers]


def test_only_clock_py_reads_clocks() -> None:
    def found() -> Iterator[str]:
        for name in sources(*PRODUCT):
            if name == "brokerd/clock.py":
                continue
            for line, module in imported_modules(name):
                if module.startswith("time.") and module.removeprefix("time.") in CLOCKS:
                    yield f"{name}:{line} imports {module}: take now_ms, or a Clock, as an argument"
            for node, called in calls(name):
                owner, _, function = called.rpartition(".")
                if (owner == "time" and function in CLOCKS) or (owner in ("datetime", "date") and function in DATES):
                    yield f"{name}:{node.lineno} reads a clock with {called}: take now_ms, or a Clock, as an argument"
                elif owner in ("loop", "_loop") and function == "time":
                    yield f"{name}:{node.lineno} reads the loop's clock: take now_ms, or a Clock, as an argument"

    offences(found())


def test_only_process_py_asks_for_forks_and_the_end() -> None:
    offences(
        f"{name}:{node.lineno} calls {called}: brokerd/process.py is the one place for what a process does at a fork and at its end"
        for name in sources(*PRODUCT)
        for node, called in calls(name)
        if called in ("os.register_at_fork", "atexit.register", "Finalize") and name != "brokerd/process.py"
    )


def test_tests_do_not_sleep() -> None:
    def found() -> Iterator[str]:
        for name in sources("tests/"):
            if name.startswith("tests/support/"):  # waiting for a condition, with a deadline, lives there
                continue
            for node, called in calls(name):
                if called in ("time.sleep", "sleep", "asyncio.sleep"):
                    yield f"{name}:{node.lineno} sleeps: wait for a condition (tests/support/wait.py, loop.py), or move a clock"

    offences(found())


def test_tests_read_nothing_beside_the_project() -> None:
    def found() -> Iterator[str]:
        for name in sources("tests/", "benchmarks/", "examples/"):
            for node in nodes(name):
                if is_parent_beyond(node, name.count("/")):
                    yield f"{name}:{node.lineno} goes above the project's root: take such a path from an environment variable"

    offences(found())


def is_parent_beyond(node: ast.AST, depth: int) -> TypeGuard[ast.Subscript]:
    """True for `path.parents[n]` of a file that has fewer folders above it in the project."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "parents"):
        return False
    return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int) and node.slice.value > depth


def test_nothing_that_is_read_can_run_code() -> None:
    def found() -> Iterator[str]:
        for name in sources(*PRODUCT):
            for line, module in imported_modules(name):
                if module.partition(".")[0] in CODE_BEARING_MODULES:
                    yield f"{name}:{line} imports {module}: bytes from outside must never become code"
            for node, called in calls(name):
                if called in CODE_BEARING_CALLS:
                    yield f"{name}:{node.lineno} calls {called}: bytes from outside must never become code"

    offences(found())


def test_generated_code_is_what_the_contract_makes() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "proto" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    stale: Callable[[], list[str]] = generate.stale
    offences(f"{name} is not what its .proto makes: run `make gen`" for name in stale())


@pytest.mark.parametrize("reason", BANNED_WORDS)
def test_no_file_holds(reason: str) -> None:
    pattern = re.compile("|".join(re.escape(word) for word in BANNED_WORDS[reason]))

    def found() -> Iterator[str]:
        for name in tracked():
            text = (ROOT / name).read_bytes().decode("utf-8", "replace")
            for number, line in enumerate(text.splitlines(), 1):
                if pattern.search(line):
                    yield f"{name}:{number} holds {reason}: {line.strip()[:100]}"

    offences(found())


def test_the_rules_find_what_they_look_for() -> None:
    tree = ast.parse(
        "import time\nclass A:\n    def f(self): ...\nclass B(WireError):\n    code = 1\ndef g():\n    time.sleep(1)\n"
    )
    assert [node.name for node in undocumented(tree)] == ["A", "f", "g"]
    assert [called_name(node) for node in ast.walk(tree) if isinstance(node, ast.Call)] == ["time.sleep"]
    assert list(unmapped("brokerd/wire", "channel.py: this\nnone.py, v1/, ids.py: that", ["channel.py", "records.py"])) == [
        "brokerd/wire/__init__.py does not name records.py: say in its docstring what it holds",
        "brokerd/wire/__init__.py names none.py, which is not there",
    ]
    (path,) = (node for node in ast.walk(ast.parse("Path(__file__).parents[2]")) if isinstance(node, ast.Subscript))
    assert [is_parent_beyond(path, depth) for depth in (1, 2)] == [True, False]
    upward = ast.parse("from brokerd.server.daemon import Daemon\nimport brokerd.sink.options\nfrom . import errors\n")
    assert [(p, m) for _, p, m in project_imports("brokerd/storage/segment.py", upward)] == [
        ("server", "brokerd.server.daemon.Daemon"),
        ("sink", "brokerd.sink.options"),
        ("storage", "brokerd.storage.errors"),
    ]
    assert not {"server", "sink"} & allowed_imports("brokerd/storage/segment.py")
    assert "sink" in allowed_imports("datasource/source.py")
    assert "sink" not in allowed_imports("datasource/options.py")
