"""Numbers that are none or far too large, in each number of a request, a problem or a setting: refused,
or a finite number within its bounds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from service.settings import Settings
from tilewright import GemmProblem, wire
from tilewright.errors import TilewrightError
from tilewright.schema.codec import decode
from tilewright.schema.job import SearchOptions
from tilewright.schema.match import MatchOptions

PROBLEM = {"m": 8, "n": 8, "k": 8}
PLACE = {"device_class": "a"}
TEXTS = (
    "NaN",
    "nan",
    "inf",
    "-inf",
    "1e39",
    "1e999",
    "9" * 4000,
    "-1",
    "\u0661\u0662",
    "\uff18",
    "1_0",
    "0x10",
    " 7",
)
FLOATS = (math.nan, math.inf, -math.inf, 1e39, 1e308)
VALUES: tuple[Any, ...] = (*TEXTS, *FLOATS, 2**31, 2**63, 10**400, -(10**400), True, None)
MODELS: dict[type[BaseModel], dict[str, Any]] = {
    wire.TuneBody: PROBLEM,
    wire.GemmQuery: {},
    wire.BestQuery: PROBLEM | PLACE,
    wire.PageQuery: {},
    wire.CancelQuery: {"mine": True},
    wire.ProblemQuery: PROBLEM,
    wire.WinnerQuery: PROBLEM | PLACE,
    wire.MissQuery: {},
    wire.MissReport: {"problem": PROBLEM, "count": 1},
    wire.FromMisses: PLACE,
}


def numbers(given: Any) -> list[float]:
    """Every number in data."""
    if isinstance(given, dict):
        return [one for value in given.values() for one in numbers(value)]
    if isinstance(given, list | tuple):
        return [one for value in given for one in numbers(value)]
    return [given] if type(given) in (int, float) else []


def bounded(number: float) -> bool:
    """Whether a number is finite; integers without a bound are those of settings alone."""
    return isinstance(number, int) or math.isfinite(number)


def fields(model: type[BaseModel]) -> list[str]:
    return [name for name, field in model.model_fields.items() if {int, float} & kinds(field.annotation)]


def kinds(hint: Any) -> set[Any]:
    return {hint, *(found for one in getattr(hint, "__args__", ()) for found in kinds(one))}


@pytest.mark.parametrize(("model", "base"), MODELS.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_requests(model: type[BaseModel], base: dict[str, Any]) -> None:
    assert fields(model)
    for name in fields(model):
        for value in VALUES:
            try:
                found = model.model_validate(base | {name: value})
            except (ValidationError, TilewrightError):
                continue
            assert all(map(math.isfinite, numbers(found.model_dump()))), f"{name}={str(value)[:30]}"


@pytest.mark.parametrize("record", [SearchOptions, GemmProblem, MatchOptions])
def test_records(record: type[Any]) -> None:
    base = PROBLEM if record is GemmProblem else {}
    for field in dataclasses.fields(record):
        for value in VALUES:
            try:
                found = decode(record, base | {field.name: value})
            except (ValueError, TilewrightError):
                continue
            assert all(map(math.isfinite, numbers(dataclasses.asdict(found)))), field.name


@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(value)[:12])
def test_extents_of_a_problem(value: Any) -> None:
    for limits in ({"m": value}, {"n": value}, {"k": value}, {"batch": value}):
        try:
            found = GemmProblem(**(PROBLEM | limits))
        except (TilewrightError, ValueError, TypeError):
            continue
        assert 1 <= min(found.m, found.n, found.k, found.batch) <= 2**31


@pytest.mark.parametrize("name", fields(Settings))
def test_settings(name: str) -> None:
    for value in VALUES:
        try:
            found = Settings(**{name: value})  # type: ignore[arg-type]
        except ValidationError:
            continue
        assert bounded(getattr(found, name)), f"{name}={str(value)[:30]}"
