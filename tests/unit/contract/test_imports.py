"""Imports: no circle, and none within a function."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import grimp

CLIENT = Path(__file__).parents[3] / "client"


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
