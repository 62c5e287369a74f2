"""No data becomes code: no source unpickles, evaluates text, or hands text to a shell."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TREE = ("client", "kernels", "tuner", "service", "migrations", "benchmarks")
MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve"}
NAMES = {
    *("eval", "exec", "__import__", "builtins.eval", "builtins.exec", "builtins.__import__"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("asyncio.create_subprocess_shell", "torch.load", "pandas.read_pickle"),
    *(
        f"yaml.{name}"
        for name in ("load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "Loader")
    ),
}
OPTIONS = {"shell", "allow_pickle"}  # only False may be given for these


def dotted(node: ast.AST, imported: dict[str, str]) -> str:
    """The full name of an expression such as ``np.load``; empty for an expression of another kind."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, node.id)
    owner = dotted(node.value, imported) if isinstance(node, ast.Attribute) else ""
    return f"{owner}.{node.attr}" if owner and isinstance(node, ast.Attribute) else ""


def names_imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each name that an import binds, with the full name of what it stands for."""
    for node in ast.walk(tree):  # codespell:ignore walk
        if isinstance(node, ast.Import):
            yield from ((one.asname or one.name, one.name) for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)


def refused_options(call: ast.Call) -> Iterator[str]:
    """Options that are switched on or may be, and modules that are loaded by their name."""
    given = [(option.arg, option.value) for option in call.keywords]
    for dictionary in (value for name, value in given if name is None and isinstance(value, ast.Dict)):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in dictionary.keys]
        given += [(str(key), value) for key, value in zip(keys, dictionary.values, strict=True)]
    for name, value in given:
        if name in OPTIONS and not (isinstance(value, ast.Constant) and value.value is False):
            yield f"{name}={ast.unparse(value)}"
    for argument in call.args:
        if isinstance(argument, ast.Constant) and str(argument.value).partition(".")[0] in MODULES:
            yield str(argument.value)


def code_from_data(source: str) -> list[str]:
    """Each use in a source of what makes code or shell commands from data."""
    tree = ast.parse(source)
    imported = dict(names_imported(tree))
    found = [name for name in imported.values() if name.partition(".")[0] in MODULES or name in NAMES]
    for node in ast.walk(tree):  # codespell:ignore walk
        if dotted(node, imported) in NAMES:
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Call):
            found += refused_options(node)
    return found


@pytest.mark.parametrize("top", TREE)
def test_no_source_makes_code_from_data(top: str) -> None:
    sources = list((ROOT / top).rglob("*.py"))
    assert sources
    found = {str(path): code_from_data(path.read_text()) for path in sources}
    assert {path: uses for path, uses in found.items() if uses} == {}


@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "import pickle as safe",
        "from pickle import loads",
        "def later():\n    import cloudpickle",
        "import marshal",
        "import shelve",
        "LazyModule('pickle')",
        "importlib.import_module('marshal')",
        "__import__('anything')",
        "eval(text)",
        "run = eval",
        "list(map(exec, texts))",
        "import builtins\nbuiltins.exec(text)",
        "from builtins import eval as number",
        "import os\nos.system(text)",
        "import os as o\no.system(text)",
        "from os import system",
        "from os import popen as run",
        "subprocess.run(text, shell=True)",
        "subprocess.run(text, shell=given)",
        "subprocess.run(text, **{'shell': True})",
        "subprocess.getoutput(text)",
        "asyncio.create_subprocess_shell(text)",
        "import yaml\nyaml.load(text)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "from yaml import load",
        "from yaml import unsafe_load as load",
        "numpy.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, allow_pickle=1)",
        "from numpy import load\nload(path, **{'allow_pickle': True})",
        "torch.load(path)",
    ],
)
def test_each_way_is_found(planted: str) -> None:
    assert code_from_data(planted)


@pytest.mark.parametrize(
    "harmless",
    [
        "module.eval()",  # a torch module that is told to infer
        "session.exec(statement)",
        "import yaml\nyaml.safe_load(text)",
        "subprocess.run(['ls', path], shell=False)",
        "import numpy as np\nnp.load(path, allow_pickle=False)\nnp.load(path)",
        "json.load(file)",
        "'eval(text)'  # exec",
    ],
)
def test_the_harmless_is_not_found(harmless: str) -> None:
    assert code_from_data(harmless) == []
