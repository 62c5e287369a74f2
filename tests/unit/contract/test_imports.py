"""Imports and folders: no circle, none within a function, no test from another; a dozen files a folder."""

from __future__ import annotations

import ast
import collections
import graphlib
from collections.abc import Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[3]
CLIENT, TESTS = ROOT / "client", ROOT / "tests"
TREE = [CLIENT, TESTS, *(ROOT / name for name in ("kernels", "tuner", "service", "migrations", "benchmarks"))]
MOST_FILES = 12


def test_no_modules_import_each_other() -> None:
    """Imports for type checkers and within functions count, too."""
    graph = grimp.build_graph("benchmarks", "service", "tuner", "kernels", "tilewright")
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imports).prepare()  # raises CycleError with the circle


def imports_within_functions(path: Path) -> list[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        f"{path.name}:{node.lineno}"
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, functions)
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    ]


def test_the_client_imports_at_the_top_of_its_modules() -> None:
    """A module that is heavy or optional is a :class:`tilewright.lazy.LazyModule`."""
    assert [found for path in CLIENT.rglob("*.py") for found in imports_within_functions(path)] == []


def imported(path: Path) -> Iterator[str]:
    """The modules that a module imports, at its top or within."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_no_test_imports_a_test() -> None:
    """What tests share lies in ``tests/support``."""
    tests = {path.stem for path in TESTS.rglob("test_*.py")}
    found = {path.name: tests & set(imported(path)) for path in TESTS.rglob("*.py")}
    assert {name: modules for name, modules in found.items() if modules} == {}


def test_a_folder_has_at_most_a_dozen_sources() -> None:
    sources = [path for top in TREE for path in top.rglob("*.*") if path.suffix in (".py", ".cu", ".cuh")]
    files = collections.Counter(path.parent for path in sources if path.name != "__init__.py")
    crowded = {str(folder): count for folder, count in files.items() if count > MOST_FILES}
    assert crowded == {}
