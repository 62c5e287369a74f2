"""Every error that is raised on purpose says which rule was broken or what to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = ("client", "kernels", "tuner", "service")
# A message passes if it has the legal values or the rule, a command, route or setting to use, or an order,
# which may be computed and stand first.
_RULE = (
    r"\b(must|needs?|needed|such as|one of|at most|allows|neither|is for|share a byte"
    r"|accumulates in)\b"
)
_USE = (
    r"'tilewright [a-z]|\b(GET|POST|DELETE) /|TILEWRIGHT_[A-Z]|--[a-z]|\b(pip|apt-get) install\b|log says why"
)
_ORDERS = (
    "allow|apply|ask|bind|cancel|check|chmod|choose|close|copy|convert|export|fetch|give|go|import|install|keep"
    "|leave|load|look|make|move|pass|put|record|remove|repeat|reset|restore|run|scale|search|see|send|set|stop"
    "|store|try|tune|update|upgrade|use|wait"
)
_HINT = re.compile(rf"{_RULE}|{_USE}|^{{}}; |(?:^|[;:,.] |\bor )(?:{_ORDERS})\b")

# Messages that no caller reads by themselves, with the reason.
CLASSES = {
    "DamagedFrame": "between processes of one service; ends a worker, which is told as WorkerDied",
    "ChannelClosed": "as DamagedFrame",
    "ChannelTimeout": "as DamagedFrame",
    "Busy": "caught: the kernel runs without a CTA order",
    "CompileError": "the outcome of one trial; carries the compiler's own log",
    "WorkerDied": "the outcome of one trial, or told as device-failed, whose title says what to do",
    "WorkerTimeout": "as WorkerDied",
    "RaceCancelled": "caught: the job is cancelled",
    "JobTaken": "ends the work on a job that another service has",
    "DemoFailed": "what the demo found wrong with this installation",
}
FILES = {
    "client/tilewright/matmul/product.py": "reasons why the vendor library computed a product, for stats",
    "client/tilewright/matmul/arrays.py": "as product.py",
    "client/tilewright/matmul/torch_arrays.py": "as product.py",
    "client/tilewright/matmul/numpy_arrays.py": "as product.py",
    "client/tilewright/matmul/matmul.py": "as product.py",
    "client/tilewright/launch/arguments.py": "carries the precondition that a call breaks",
    "client/tilewright/launch/slots.py": "as arguments.py",
    "client/tilewright/launch/tensor_map.py": "as arguments.py",
    "client/tilewright/launch/host.py": "as arguments.py",
    "kernels/compiler/cubin.py": "what the compiler wrote is damaged: the outcome of one trial",
    "service/cli/doctor.py": "a finding stands beside its remedy",
    "tuner/measure/vendor.py": "caught: a race goes on without the library's default",
}


def messages() -> Iterator[tuple[str, str]]:
    """Where each error is raised whose message is written there, and the message with ``{}`` for values."""
    trees = {p: ast.parse(p.read_text()) for f in FOLDERS for p in sorted((ROOT / f).rglob("*.py"))}
    ours = error_classes(list(trees.values()))
    for path, tree in trees.items():
        where = str(path.relative_to(ROOT))
        for function in nodes(tree, ast.FunctionDef | ast.AsyncFunctionDef):
            for raised in nodes(function, ast.Raise):
                name, argument = called(raised, ours)
                text = shown(argument, function)
                if text and re.search("[a-z]{2} ", text) and name not in CLASSES and where not in FILES:
                    yield f"{where}:{raised.lineno}", text


def error_classes(trees: list[ast.Module]) -> set[str]:
    """The names of the subclasses of TilewrightError, and of Refusal."""
    bases = {
        node.name: {getattr(base, "id", getattr(base, "attr", "")) for base in node.bases}
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    found = {"TilewrightError", "Refusal"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def called(raised: ast.Raise, ours: set[str]) -> tuple[str, ast.expr | None]:
    """The class of a raised error and the expression of its message."""
    call = raised.exc
    name = getattr(call.func, "id", getattr(call.func, "attr", "")) if isinstance(call, ast.Call) else ""
    if not isinstance(call, ast.Call) or name not in ours:
        return name, None
    return name, next(iter(call.args[1 if name == "Refusal" else 0 :]), None)


def shown(argument: ast.expr | None, function: ast.AST) -> str:
    """A literal message, also one that a name of the function holds; empty for any other expression."""
    if isinstance(argument, ast.Name):
        values = [n.value for n in nodes(function, ast.Assign) if assigns(n, argument.id)]
        return shown(values[-1], function) if values else ""
    if isinstance(argument, ast.Constant):
        return str(argument.value)
    if isinstance(argument, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in argument.values)
    return ""


def assigns(node: ast.Assign, name: str) -> bool:
    return name in {getattr(one, "id", "") for one in node.targets}


def nodes(tree: ast.AST, kinds: Any) -> list[Any]:
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]  # codespell:ignore walk


def test_every_message_says_the_rule_or_what_to_do() -> None:
    found = dict(messages())
    assert len(found) > 120
    assert {where: text for where, text in found.items() if not _HINT.search(text)} == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not a launch plan: {}", False),
        ("out of memory on the device", False),
        ("there is no job {}", False),
        ("out of memory on the device; use a smaller problem", True),
        ("m must be an integer in 1 .. {}, got {}", True),
        ("there is no job {}; 'tilewright jobs ls' lists those there are", True),
    ],
)
def test_the_rule_tells_help_from_none(text: str, says: bool) -> None:
    assert bool(_HINT.search(text)) is says
