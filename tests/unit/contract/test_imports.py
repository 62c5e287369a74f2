"""Imports and folders: no circle, none within a function, no test from another; a dozen files a folder."""

from __future__ import annotations

import ast
import collections
import graphlib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[3]
CLIENT, TESTS = ROOT / "client", ROOT / "tests"
TREE = [CLIENT, TESTS, *(ROOT / name for name in ("kernels", "tuner", "service", "migrations", "benchmarks"))]
MOST_FILES = 12
_LAZY = "def __getattr__(name: str)"
_WITHIN = re.compile(r"^ +(import \w|from [\w.]+ import )", re.MULTILINE)
_OF_A_TEST = re.compile(r"^ *(?:import|from) (test_\w+)", re.MULTILINE)


@pytest.fixture(scope="module")
def imports() -> set[tuple[str, str]]:
    """Pairs of a module and one that it imports; those for type checkers and within functions count, too."""
    graph = grimp.build_graph("benchmarks", "service", "tuner", "kernels", "tilewright")
    return {(one, other) for one in graph.modules for other in graph.find_modules_directly_imported_by(one)}


def check_no_circle(imports: Iterable[tuple[str, str]]) -> None:
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for importer, imported in imports:
        sorter.add(importer, imported)
    sorter.prepare()  # raises CycleError with the circle


def test_no_modules_import_each_other(imports: set[tuple[str, str]]) -> None:
    check_no_circle(imports)


def parting(importer: str, imported: str) -> tuple[str, str]:
    """The ancestors of two modules, or those themselves, that lie side by side in one package."""
    paths = zip(lineage(importer), lineage(imported), strict=False)
    return next(((one, other) for one, other in paths if one != other), (importer, imported))


def lineage(module: str) -> Iterator[str]:
    return itertools.accumulate(module.split("."), "{}.{}".format)


def test_no_packages_import_each_other(imports: set[tuple[str, str]]) -> None:
    """Packages of one package form a circle also where no two of their modules do."""
    check_no_circle(parting(importer, imported) for importer, imported in imports)


# What an installation may lack, and modules of ours that need it: all that is imported within functions.
OPTIONAL = {
    "cuda",
    "cupy",
    "kernel_tuner",
    "matplotlib",
    "nvMatmulHeuristics",
    "nvmath",
    "pynvml",
    "ray",
    "torch",
}
NEED_THEM = {
    "service.fleet.actor",
    *(f"tuner.devices.{name}" for name in ("cublaslt", "cuda", "gpu_state", "nvml")),
}


def imports_within_functions(path: Path) -> Iterator[str]:
    text = path.read_text()
    if not _WITHIN.search(text):  # NOTE: as most files have none, and to parse one takes long
        return
    for function in ast.walk(ast.parse(text)):  # codespell:ignore walk
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(function)


def test_only_the_optional_is_imported_within_functions() -> None:
    """The tests for GPUs are collected without one, and import theirs within."""
    sources = [path for top in TREE for path in top.rglob("*.py") if TESTS / "gpu" not in path.parents]
    found = {(str(path), name) for path in sources for name in imports_within_functions(path)}
    assert {
        one for one in found if one[1].partition(".")[0] not in OPTIONAL and one[1] not in NEED_THEM
    } == set()


def test_the_client_imports_at_the_top_of_its_modules() -> None:
    """A module that is heavy or optional is a :class:`tilewright.lazy.LazyModule`."""
    assert [found for path in CLIENT.rglob("*.py") for found in imports_within_functions(path)] == []


def test_only_modules_that_load_on_first_use_are_imported_for_type_checkers() -> None:
    """No import is hidden from Python to break a circle."""
    sources = {path: path.read_text() for top in TREE for path in top.rglob("*.py") if path != Path(__file__)}
    found = {str(path) for path, text in sources.items() if "if TYPE_CHECKING:" in text}
    assert found <= {str(path) for path, text in sources.items() if "LazyModule(" in text or _LAZY in text}


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a module or a function imports, at its top or within."""
    for node in ast.walk(tree):  # codespell:ignore walk
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_revisions_import_nothing_of_the_application() -> None:
    """What a revision makes of a database must not change with a later release."""
    found = {
        name.partition(".")[0]
        for path in (ROOT / "migrations" / "versions").rglob("*.py")
        for name in imported(ast.parse(path.read_text()))
    }
    assert found - sys.stdlib_module_names == {"alembic", "sqlalchemy"}


def test_no_test_imports_a_test() -> None:
    """What tests share lies in ``tests/support``."""
    found = {path.name: _OF_A_TEST.findall(path.read_text()) for path in TESTS.rglob("*.py")}
    assert {name: modules for name, modules in found.items() if modules} == {}


def test_a_folder_has_at_most_a_dozen_sources() -> None:
    sources = [path for top in TREE for path in top.rglob("*.*") if path.suffix in (".py", ".cu", ".cuh")]
    files = collections.Counter(path.parent for path in sources if path.name != "__init__.py")
    crowded = {str(folder): count for folder, count in files.items() if count > MOST_FILES}
    assert crowded == {}
