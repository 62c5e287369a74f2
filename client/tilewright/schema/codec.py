"""Records to plain JSON data and back.

A record is a frozen dataclass, and its fields are its only definition: messages over HTTP, lines of an
export, rows of the database and cached config sets all derive from it. :func:`encode` and :func:`decode` need
no pydantic, whose import takes longer than a start of the client from its cache. pydantic applies the
constraints below too: each gives its schema.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar, cast

R = TypeVar("R")
Decode = Callable[[Any], Any]
Merge = Callable[[dict[str, Any], str, Any], None]

_HEX = "0123456789abcdef"
# What each pattern takes, and an example.
PATTERNS = {
    "[0-9a-f]{16}": ("16 lower-case hexadecimal digits", _HEX),
    "[0-9a-f]{32}": ("32 lower-case hexadecimal digits", _HEX * 2),
    "([0-9a-f]{32})?": ("32 lower-case hexadecimal digits or empty", _HEX * 2),
    "[0-9a-f]{64}": ("64 lower-case hexadecimal digits", _HEX * 4),
    "[0-9a-f]{1,32}": ("1 to 32 lower-case hexadecimal digits", _HEX[:8]),
    "sha256:[0-9a-f]{64}": ("sha256: and 64 lower-case hexadecimal digits", f"sha256:{_HEX * 4}"),
    "[0-9]{1,18}": ("1 to 18 digits", "42"),
    "[!-~]+": ("ASCII characters without blanks", "nightly-2026-01-31"),
    "[A-Za-z0-9_-]+": ("the value of 'next' in the page before", "eyJpZCI6NDJ9"),
    "[A-Za-z0-9._-]{1,128}": ("1 to 128 letters, digits, dots, hyphens and underscores", "nightly.ci"),
    "[A-Za-z0-9._-]{1,32}": ("1 to 32 letters, digits, dots, hyphens and underscores", "x86_64_v3"),
    "[A-Za-z0-9_.-]{0,16}": ("at most 16 letters, digits, dots, hyphens and underscores", "search"),
    "[a-z.-]{1,40}": ("1 to 40 lower-case letters, dots and hyphens", "page.css"),
    "[a-z][a-z0-9_]{0,31}": (
        "at most 32 lower-case letters, digits and underscores from a letter on",
        "wgmma_ws",
    ),
    "([A-Za-z0-9._-]{1,63}/)?(host|cuda:[0-9]{1,3})": (
        "host or cuda:NUMBER, in a fleet after NODE/",
        "node1/cuda:0",
    ),
    "(debug|info|warning|error)": ("debug, info, warning or error", "info"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """A number of at least ``low`` and at most ``high``."""

    low: float
    high: float

    def check(self, value: float) -> None:
        """Raise ValueError for a value out of range."""
        if not self.low <= value <= self.high:
            raise ValueError(f"must be in {self.low} .. {self.high}, got {value!r}")

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        schema = {**handler(source), "ge": self.low, "le": self.high}
        return schema | {"allow_inf_nan": False} if schema["type"] == "float" else schema


def in_words(pattern: str) -> str:
    """What text must be to match a pattern as a whole; the pattern itself where it has no words."""
    words, example = PATTERNS.get(pattern.removeprefix("^").removesuffix("$"), ("", ""))
    return f"must be {words}, such as {example}" if words else f"must match {pattern}"


def rule(error: Mapping[str, Any]) -> str:
    """What a rule of pydantic asks for that an error is about."""
    if error["type"] == "string_pattern_mismatch":
        return in_words(error["ctx"]["pattern"])
    return str(error["msg"]).removeprefix("Value error, ")  # before the message of a rule of ours


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    """Text that a regular expression matches as a whole."""

    regex: str

    def check(self, value: str) -> None:
        """Raise ValueError for text that does not match."""
        if re.fullmatch(self.regex, value) is None:
            raise ValueError(f"{in_words(self.regex)}; got {value[:80]!r}")

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "pattern": f"^{self.regex}$"}


@dataclasses.dataclass(frozen=True, slots=True)
class MaxLength:
    """Text or a list of at most ``limit`` characters or items."""

    limit: int

    def check(self, value: str | tuple[Any, ...]) -> None:
        """Raise ValueError for a value that is longer."""
        if len(value) > self.limit:
            raise ValueError(f"must have a length of at most {self.limit}, got {len(value)}")

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return {**handler(source), "max_length": self.limit}


@dataclasses.dataclass(frozen=True, slots=True)
class Pairs:
    """(name, value) pairs sorted by name, which are a JSON object in plain data."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        mapping = handler.generate_schema(dict[str, Annotated[int, _KNOBS] | str])
        return {
            "type": "function-after",
            "function": {"type": "no-info", "function": lambda value: tuple(sorted(value.items()))},
            "schema": mapping,
            "serialization": {"type": "function-plain", "function": dict, "return_schema": mapping},
        }


_MOST_LEVELS = 32  # pydantic writes some 250 at most, of which an answer has some around these
KnobValue = int | str
# What a float and 64 bits of a database or of an array can hold.
_KNOBS = Bounds(1 - 2**63, 2**63 - 1)
Count = Annotated[int, Bounds(0, 2**31 - 1)]
Bytes = Annotated[int, Bounds(0, 2**62)]
Seconds = Annotated[float, Bounds(0.0, 1e12)]
Positive = Annotated[float, Bounds(5e-324, 1.7976931348623157e308)]
Sha256 = Annotated[str, Pattern("[0-9a-f]{64}")]
JobId = Annotated[str, Pattern("[0-9a-f]{32}")]
Text = Annotated[str, MaxLength(10_000_000)]
FamilyName = Annotated[str, Pattern("[a-z][a-z0-9_]{0,31}")]
ArchName = Annotated[str, Pattern("[A-Za-z0-9._-]{1,32}")]
KeyName = Annotated[str, Pattern("[A-Za-z0-9._-]{1,128}")]


def encode(value: Any) -> Any:
    """The plain JSON data of a record or of a value of its fields."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain: dict[str, Any] = {}
        for name, merge in _encoders(type(value)):
            merge(plain, name, getattr(value, name))
        return plain
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {name: encode(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [encode(one) for one in value]
    return value


def decode(kind: type[R], data: Any) -> R:
    """The record in plain JSON data; fields that ``kind`` does not have are ignored.

    The metadata of a field may have ``was``, its name in earlier releases, ``values_were``, a map from
    earlier names of its values to current ones, and ``flat``: the fields of the record that it holds are in
    the object of the outer record.

    Raises:
        ValueError: a field is missing, of another type or breaks a constraint; the message names the field.
        InvalidProblem: a problem or a config breaks one of its own rules.
    """
    return cast(R, _record(cast(Hashable, kind))(data))


def decode_known(kind: type[R], data: Any) -> R:
    """The same where a field that ``kind`` does not have could change what the others mean.

    Raises:
        ValueError, InvalidProblem: as :func:`decode`, and for such a field.
    """
    known = {field.name for field in dataclasses.fields(cast(Any, kind))}
    if type(data) is dict and (unknown := data.keys() - known):
        raise ValueError(f"{min(unknown)}: must be left out: this release does not know it")
    return decode(kind, data)


def gathered(kind: type[Any], *sources: object, **given: Any) -> dict[str, Any]:
    """Values for the fields of a record or a pydantic model, from ``given`` or the first source that has
    them.

    A source has a field if it has an attribute of that name. Fields that no source has are left out, for
    their default.
    """
    names = getattr(kind, "model_fields", None) or [field.name for field in dataclasses.fields(kind)]
    first = ((name, next((one for one in sources if hasattr(one, name)), None)) for name in names)
    return {name: getattr(source, name) for name, source in first if source is not None} | given


class _FieldError(ValueError):
    """A rule that the field at ``path`` breaks."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path, self.message = path, message


@functools.cache
def _encoders(kind: type[Any]) -> tuple[tuple[str, Merge], ...]:
    """(field name, function that adds its value to the object of the record), for each field of a record."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple((field.name, _merge(hints[field.name], field)) for field in dataclasses.fields(kind))


def _merge(hint: Any, field: dataclasses.Field[Any]) -> Merge:
    if field.metadata.get("flat"):
        return lambda plain, _, value: plain.update(encode(value))
    pairs = any(isinstance(extra, Pairs) for extra in getattr(hint, "__metadata__", ()))
    of_value = dict if pairs else encode
    return lambda plain, name, value: plain.update({name: of_value(value)})


@functools.cache
def _record(kind: Any) -> Decode:
    hints = typing.get_type_hints(kind, include_extras=True)
    declared = dataclasses.fields(kind)
    fields = [(field.name, _finder(field), _decoder(hints[field.name])) for field in declared]
    flat = {field.name for field in declared if field.metadata.get("flat")}
    absent = dataclasses.MISSING
    required = {one.name for one in declared if one.default is absent and one.default_factory is absent}

    def read(data: Any) -> Any:
        if type(data) is not dict:
            raise ValueError(f"must be an object, got {_named(data)}")
        values, name = {}, ""
        try:
            for name, find, of_plain in fields:
                found = find(data) if find else data.get(name, absent)
                if found is not absent:
                    values[name] = of_plain(found)
                elif name in required:
                    raise ValueError("is missing")
        except _FieldError as error:
            raise _FieldError(error.path if name in flat else f"{name}.{error.path}", error.message) from None
        except ValueError as error:
            raise _FieldError(name, str(error)) from None
        return kind(**values)

    return read


def _finder(field: dataclasses.Field[Any]) -> Decode | None:
    """The function that finds a field's value in the object of its record; None to use the field's name."""
    told = field.metadata
    if told.get("flat"):
        return lambda data: data
    if not told.keys() & {"was", "values_were"}:
        return None
    was, values_were = told.get("was", field.name), told.get("values_were", {})

    def find(data: dict[str, Any]) -> Any:
        found = data.get(field.name, data.get(was, dataclasses.MISSING))
        return values_were.get(found, found) if isinstance(found, str) else found

    return find


@functools.cache
def _decoder(hint: Any) -> Decode:
    """The function that reads values of a type hint."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _checked(arguments[0], arguments[1:])
    if origin is types.UnionType or origin is typing.Union:
        return _union(arguments)
    if origin is tuple:
        return _items(_decoder(arguments[0]))
    if origin is Literal:
        return _one_of(arguments)
    if origin is dict or hint is Any:
        return _free if origin is dict else lambda value: value
    if dataclasses.is_dataclass(hint):
        return _record(cast(Hashable, hint))
    if issubclass(hint, Enum):
        return _member(hint)
    return {float: _number, datetime: _moment}.get(hint) or _exactly(hint)


def _checked(hint: Any, constraints: tuple[Any, ...]) -> Decode:
    if any(isinstance(one, Pairs) for one in constraints):
        return _pairs
    of_plain = _decoder(hint)

    def read(value: Any) -> Any:
        found = of_plain(value)
        for constraint in constraints:
            constraint.check(found)
        return found

    return read


def _union(arguments: tuple[Any, ...]) -> Decode:
    """Read a value of one type or None; :func:`_pairs` reads the values of knobs."""
    (hint,) = (one for one in arguments if one is not types.NoneType)
    of_plain = _decoder(hint)
    return lambda value: None if value is None else of_plain(value)


def _items(of_plain: Decode) -> Decode:
    def read(value: Any) -> Any:
        if type(value) is not list:
            raise ValueError(f"must be a list, got {_named(value)}")
        return tuple(map(of_plain, value))

    return read


def _one_of(legal: tuple[Any, ...]) -> Decode:
    def read(value: Any) -> Any:
        if value not in legal:
            raise ValueError(f"must be one of {', '.join(map(str, legal))}, got {value!r}")
        return value

    return read


def _member(kind: type[Enum]) -> Decode:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            legal = ", ".join(str(one.value) for one in kind)
            raise ValueError(f"must be one of {legal}, got {str(value)[:80]!r}") from None

    return read


def _exactly(kind: type[Any]) -> Decode:
    """Read values of one JSON type; true and false are not integers."""

    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"must be {kind.__name__}, got {_named(value)}")
        return value

    return read


def _free(value: Any) -> Any:
    """Read an object of any members."""
    level = [_exactly(dict)(value)]
    for _ in range(_MOST_LEVELS):
        if not level:
            return value
        inner = (one for each in level for one in (each.values() if type(each) is dict else each))
        level = [one for one in inner if type(one) in (dict, list)]
    if level:
        raise ValueError(f"must have lists and objects nested {_MOST_LEVELS} deep at most")
    return value


def _number(value: Any) -> float:
    try:
        if type(value) in (float, int) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond float64
        pass
    raise ValueError(f"must be a finite number, got {_named(value)}")


def _moment(value: Any) -> datetime:
    found = datetime.fromisoformat(_exactly(str)(value))
    if found.tzinfo is None:
        raise ValueError(f"must have a time zone, got {value[:80]!r}")
    try:
        found.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"must be in the years 1 to 9999 of UTC, got {value[:80]!r}") from None
    return found


def too_large(knob: int) -> str:
    """What the integer of a knob must be instead, and how large it is; empty for one of 64 bits."""
    fits = _KNOBS.low <= knob <= _KNOBS.high
    return "" if fits else f"in {_KNOBS.low} .. {_KNOBS.high}, got an integer of {knob.bit_length()} bits"


def _pairs(value: Any) -> tuple[tuple[str, KnobValue], ...]:
    if type(value) is not dict:
        raise ValueError(f"must be an object, got {_named(value)}")
    for name, one in value.items():
        if type(one) not in (int, str):
            raise _FieldError(name, f"must be an integer or a name, got {_named(one)}")
        if type(one) is int and (broken := too_large(one)):
            raise _FieldError(name, f"must be {broken}")
    return tuple(sorted(value.items()))


def _named(value: Any) -> str:
    return "null" if value is None else type(value).__name__
