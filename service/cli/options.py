"""Arguments and options of a verb that are the fields of a record."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from service.cli.output import PROBLEM_ARGUMENTS, ElementType, K, M, N, OperandLayout, problem_of
from tilewright.schema.codec import Bounds
from tilewright.schema.problem import GemmProblem

P = ParamSpec("P")
T = TypeVar("T")
_DESCRIBED = re.compile(r"^        ([a-z]\w*(?:, \w+)*): (.*?)(?=^ {0,8}\S|\Z)", re.MULTILINE | re.DOTALL)
_NAMES = {"families": "--family"}


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """The problem that a verb's arguments name.

    Attributes:
        fields: those of a problem that were given, by name.
    """

    fields: dict[str, Any]

    def on(self, device_kind: str) -> GemmProblem:
        """The problem; a type or layout that was not given is what a CPU or a GPU computes."""
        fields = dict(self.fields)
        extents = [fields.pop(name) for name in ("m", "n", "k")]
        return problem_of(
            extents, fields.pop("dtype", None), fields.pop("layout", None), device_kind, **fields
        )


def takes(name: str, record: type[Any], *without: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A verb with an option for each field of ``record``, but those in ``without``.

    The verb gets those that the user gave as its argument ``name``, a dictionary. The help has the range, the
    default and the description of each field.
    """
    options = [option for option in _options(record) if option.name not in without]
    return _instead(name, options, lambda given: given)


def asks(more: bool = True) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A verb with arguments M, N and K, options for type and layout and, with ``more``, for all other fields
    of a problem, which it gets as its argument ``asked``, an :class:`Asked`."""
    plain = {"m": M, "n": N, "k": K, "dtype": ElementType, "layout": OperandLayout}
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if name in ("m", "n", "k") else None,
            annotation=annotation,
        )
        for name, annotation in plain.items()
    ]
    parameters += [one for one in _options(GemmProblem) if more and one.name not in PROBLEM_ARGUMENTS]
    return _instead("asked", parameters, Asked)


def _instead(
    name: str, parameters: list[inspect.Parameter], make: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Verbs with ``parameters`` in place of the argument ``name``, which is made of those that are given."""

    def decorate(verb: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(verb)
        def run(*arguments: P.args, **given: P.kwargs) -> T:
            values = {one.name: given.pop(one.name) for one in parameters}
            fields = {field: value for field, value in values.items() if value not in (None, [])}
            return verb(*arguments, **given | {name: make(fields)})  # type: ignore[arg-type]

        signature = inspect.signature(verb, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name != name]
        made: Any = run
        made.__signature__ = signature.replace(parameters=[*own, *parameters])
        made.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *parameters]}
        return run

    return decorate


def _options(record: type[Any]) -> list[inspect.Parameter]:
    hints, described = typing.get_type_hints(record, include_extras=True), _descriptions(record)
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=_annotation(name, hints[name], getattr(record, name, None), described[name]),
        )
        for name in record.__dataclass_fields__
    ]


def _annotation(name: str, hint: Any, default: Any, text: str) -> Any:
    bounds = next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Bounds)), None)
    low, high = (bounds.low, bounds.high) if bounds else (None, None)
    shown = default.value if isinstance(default, Enum) else default
    text += "" if shown in (None, (), False) else f" {shown} by default."
    flag = _NAMES.get(name, f"--{name.replace('_', '-')}")
    option = typer.Option(flag, help=text, show_default=False, min=low, max=high)
    return Annotated[_plain(hint) | None, option]


def _plain(hint: Any) -> Any:
    """The type of an option that gives a field of this type."""
    if typing.get_origin(hint) is Annotated:
        return _plain(typing.get_args(hint)[0])
    if typing.get_origin(hint) is tuple:
        return list[str]
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return next(_plain(one) for one in typing.get_args(hint) if one is not types.NoneType)
    return hint


def _descriptions(record: type[Any]) -> dict[str, str]:
    """What the docstrings of a record and of those that it inherits from say of each field."""
    found: dict[str, str] = {}
    for kind in record.__mro__[:-1]:
        for names, text in _DESCRIBED.findall(kind.__doc__ or ""):
            plain = re.sub(r" \(:\w+:`[^`]*`\)|:\w+:|`", "", " ".join(text.split()))
            found |= dict.fromkeys(names.split(", "), plain[0].upper() + plain[1:])
    return found
