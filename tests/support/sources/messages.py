"""Reads the messages of errors out of the sources: where each is written, its class, and its texts."""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

OURS = re.compile(r"\{([A-Z]\w*(?:\|\w+)*)\}")
"""Stands for an error of ours of these classes, within the message of another one."""
_MOST = 4096  # texts of one message
_UNCHANGED = {"replace", "strip", "rstrip", "removesuffix", "removeprefix", "partition"}


@dataclasses.dataclass(frozen=True)
class Message:
    """A message that some code writes.

    Attributes:
        where: the file, and the function in it.
        line: of the call that makes the error.
        error: the name of its class.
        texts: what it may read, with ``{}`` for values and names of classes, as in ``OURS``, for errors.
    """

    where: str
    line: int
    error: str
    texts: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.where.partition('::')[0]}:{self.line}"


def read_messages(root: Path, folders: Iterable[str], roots: Iterable[str]) -> list[Message]:
    """Every message of the classes below ``roots``, whether its error is raised, returned or passed on."""
    trees = {
        str(p.relative_to(root)): ast.parse(p.read_text()) for f in folders for p in (root / f).rglob("*.py")
    }
    sources = _Sources(trees, set(roots))
    return sorted(sources.messages(), key=lambda one: (one.where, one.line))


Expression = tuple[str, tuple[Any, ...], ast.expr]
"""An expression, with its file and the classes and functions around it."""


class _Sources:
    def __init__(self, trees: dict[str, ast.Module], roots: set[str]) -> None:
        self._trees = trees
        every = [node for tree in trees.values() for node in ast.walk(tree)]  # codespell:ignore walk
        classes = [node for node in every if isinstance(node, ast.ClassDef)]
        self.ours = _below(classes, roots)
        self._inits = {
            node.name: init for node in classes if node.name in self.ours for init in _init_of(node)
        }
        self._functions: dict[str, list[ast.FunctionDef]] = {}
        for node in every:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.setdefault(node.name, []).append(node)  # type: ignore[arg-type]
        self._files = {
            node: path
            for path, tree in trees.items()
            for node in _nodes(tree, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        folders = {folder: i for i, folder in enumerate(dict.fromkeys(path.split("/")[0] for path in trees))}
        self._layers = {node: folders[path.split("/")[0]] for node, path in self._files.items()}
        self._calls: dict[str, list[tuple[str, tuple[Any, ...], ast.Call]]] = {}
        for path, tree in trees.items():
            for scope, call in _calls(tree, ()):
                self._calls.setdefault(_name(call.func), []).append((path, scope, call))
        self._constants = {
            (path, target.id): node.value
            for path, tree in trees.items()
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    def messages(self) -> Iterator[Message]:
        for path, tree in self._trees.items():
            for scope, call in _calls(tree, ()):
                found = self._message(call, scope)
                if found is None:
                    continue
                error, argument = found
                where = f"{path}::{'.'.join(one.name for one in _defined(scope))}"
                texts = _Texts(self, path, scope).of(argument)
                yield Message(where, call.lineno, error, tuple(dict.fromkeys(texts)))

    def _message(self, call: ast.Call, scope: tuple[Any, ...]) -> tuple[str, ast.expr | None] | None:
        """The class that a call makes an error of, and its message; None for other calls."""
        name = _name(call.func)
        if name == "__init__":  # super().__init__(...)
            *_, around, function = (None, None, *_defined(scope))
            if around is None or around.name not in self._inits:
                return None
            passed = {arg.arg for arg in function.args.args}
            [message] = call.args[:1] or [None]
            own = message is not None and not (isinstance(message, ast.Name) and message.id in passed)
            return (around.name, message) if own else None
        if name not in self.ours:
            return None
        base = self._inits.get(name)
        names = ["message"] if base is None else [arg.arg for arg in base.args.args[1:]]
        place = next((i for i, one in enumerate(names) if one in ("message", "detail", "reason")), None)
        if place is None:
            return None  # its __init__ writes the message
        keyword = next((one.value for one in call.keywords if one.arg == names[place]), None)
        return name, keyword or next(iter(call.args[place:]), None)

    def constant(self, path: str, name: str) -> ast.expr | None:
        return self._constants.get((path, name))

    def returns(self, name: str, caller: Any) -> list[Expression]:
        """What the functions of a name return: those of the caller's file if the name is
        private, else those of folders that it may import."""
        layer, home = self._layers.get(caller, 0), self._files.get(caller)
        return [
            (self._files[function], (function,), node.value)
            for function in self._functions.get(name, [])
            if self._layers.get(function, 0) <= layer
            if not name.startswith("_") or self._files.get(function) == home
            for node in _nodes(function, ast.Return)
            if node.value is not None
        ]

    def given(self, function: Any, name: str) -> list[Expression]:
        """What callers give for a parameter of a function whose name no other one has, in its file if it is
        private."""
        names = [arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)]
        private, home = function.name.startswith("_"), self._files.get(function)
        namesakes = [f for f in self._functions[function.name] if not private or self._files.get(f) == home]
        if name not in names or len(namesakes) != 1 or function.name == "__init__":
            return []
        place = names.index(name) - (names[0] in ("self", "cls"))
        found = []
        for path, scope, call in self._calls.get(function.name, []):
            if private and path != home:
                continue
            keyword = next((one.value for one in call.keywords if one.arg == name), None)
            value = keyword or next(iter(call.args[place : place + 1]), None)
            if value is not None:
                found.append((path, scope, value))
        return found


class _Texts:
    """The texts that an expression may have within a function."""

    def __init__(
        self, sources: _Sources, path: str, scope: tuple[Any, ...], seen: frozenset[Any] = frozenset()
    ) -> None:
        self._sources, self._path, self._scope = sources, path, scope
        self._seen = (
            seen  # variables and functions whose texts are asked for: a variable may be set from itself
        )

    def of(self, node: ast.expr | None) -> list[str]:
        match node:
            case None:
                return [""]
            case ast.Constant(value=None | ""):
                return []  # no message
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=parts):
                return self._joined(parts)
            case ast.FormattedValue(value=value):
                words = isinstance(value, ast.Name | ast.IfExp | ast.Constant | ast.Call)
                return self.of(value) if words else ["{}"]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._joined([left, right])
            case ast.IfExp(body=left, orelse=right):
                return [*self.of(left), *self.of(right)]
            case ast.BoolOp(values=values):
                return [text for value in values for text in self.of(value)]
            case ast.Subscript(value=value):
                return self.of(value)
            case ast.Name(id=name):
                return self._named(name)
            case ast.Call(func=ast.Name(id="str" | "printable"), args=[value]):
                return self.of(value)
            case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in _UNCHANGED:
                return self.of(value)
            case ast.Call(func=function):
                return self._returned(_name(function))
        return ["{}"]

    def _joined(self, parts: Iterable[ast.expr]) -> list[str]:
        every = [list(dict.fromkeys(self.of(part))) or [""] for part in parts]
        assert math.prod(map(len, every)) <= _MOST, ast.unparse(self._scope[-1])[:200]
        return ["".join(one) for one in itertools.product(*every)]

    def _named(self, name: str) -> list[str]:
        """The texts of a variable, a parameter or a constant."""
        for function in reversed([one for one in self._scope if not isinstance(one, ast.ClassDef)]):
            handlers = [one for one in _nodes(function, ast.ExceptHandler) if one.name == name]
            if handlers:  # NOTE: the innermost of the scope is itself one of these, and comes first
                caught = frozenset[str]().union(*map(_caught, handlers))
                return [f"{{{'|'.join(sorted(caught))}}}"] if caught <= self._sources.ours else ["{}"]
            if isinstance(function, ast.ExceptHandler):
                continue
            values = [one.value for one in _nodes(function, ast.Assign) if name in _targets(one)]
            given = [(self._path, self._scope, value) for value in values] or self._sources.given(
                function, name
            )
            if given:
                return self._all_of(given, (function, name))
        constant = self._sources.constant(self._path, name)
        return ["{}"] if constant is None else self.of(constant)

    def _returned(self, name: str) -> list[str]:
        found = self._sources.returns(name, next(reversed(_defined(self._scope)), None))
        if not found or name in self._sources.ours:
            return ["{}"]
        return self._all_of(found, name)

    def _all_of(self, found: list[Expression], what: Any) -> list[str]:
        if what in self._seen:
            return []
        seen = self._seen | {what}
        texts = [
            t for path, scope, value in found for t in _Texts(self._sources, path, scope, seen).of(value)
        ]
        return list(dict.fromkeys(texts))


def _below(classes: list[ast.ClassDef], roots: set[str]) -> set[str]:
    found = set(roots)
    while more := {c.name for c in classes if found & set(map(_name, c.bases))} - found:
        found |= more
    return found


def _init_of(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]


_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _calls(node: ast.AST, scope: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], ast.Call]]:
    """Calls below a node, each with the classes, functions and handlers around it."""
    for child in ast.iter_child_nodes(node):
        inner = (*scope, child) if isinstance(child, _SCOPES | ast.ExceptHandler) else scope
        if isinstance(child, ast.Call):
            yield scope, child
        yield from _calls(child, inner)


def _defined(scope: tuple[Any, ...]) -> list[Any]:
    """The classes and functions of a scope."""
    return [one for one in scope if isinstance(one, _SCOPES)]


def _targets(node: ast.Assign) -> set[str]:
    """The variables that an assignment sets to its value."""
    return {one.id for one in node.targets if isinstance(one, ast.Name)}


def _caught(handler: ast.ExceptHandler) -> set[str]:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {_name(kind) for kind in kinds}


def _name(node: Any) -> str:
    """The last name of ``a.b.c``; empty for other expressions."""
    return str(getattr(node, "id", getattr(node, "attr", "")))


@functools.cache
def _nodes(tree: ast.AST, kind: Any) -> list[Any]:
    return [node for node in ast.walk(tree) if isinstance(node, kind)]  # codespell:ignore walk
