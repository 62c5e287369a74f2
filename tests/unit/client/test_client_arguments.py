"""What the methods of a client take, and what they refuse before they ask the service."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import io
import math
import operator
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import numpy as np
import pydantic
import pytest

from tilewright import AsyncClient, Client, GemmProblem, wire
from tilewright.config_sets.options import LocalOptions, StartOptions
from tilewright.errors import InvalidProblem
from tilewright.http.arguments import (
    BestOptions,
    CancelOptions,
    ExportOptions,
    GemmOptions,
    ListOptions,
    Miss,
    TuneOptions,
)
from tilewright.http.gemm_calls import gemm_query
from tilewright.schema.problem import Layout
from tilewright.wire.requests import LookupQuery

PROBLEM = GemmProblem(8, 8, 8, "float32")
NOWHERE = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(NOWHERE) as made:
        yield made


# Keyword options, the record or request whose fields they are, those that others give, and those added.
KEYWORDS: list[tuple[Any, Any, set[str], dict[str, Any]]] = [
    (TuneOptions, wire.TuneBody, {*wire.ProblemBody.model_fields}, {"idempotency_key": object}),
    (TuneOptions, wire.TuneMissesBody, {"from_misses"}, {"idempotency_key": object}),
    (BestOptions, LookupQuery, set(), {}),
    (BestOptions, wire.LookupBody, {"problems"}, {}),
    (ListOptions, wire.BestQuery, {*wire.PageQuery.model_fields, "m", "n", "k", "match", "max_regret"}, {}),
    (CancelOptions, wire.CancelQuery, set(), {}),
    (ExportOptions, wire.ExportQuery, set(), {}),
    (GemmOptions, wire.GemmQuery, set(), {"transpose_a": bool, "transpose_b": bool}),
    (LocalOptions, StartOptions, {one.name for one in dataclasses.fields(StartOptions) if not one.init}, {}),
]


@pytest.mark.parametrize(("keywords", "request_", "given", "added"), KEYWORDS)
def test_keyword_options_are_the_fields_of_their_request(
    keywords: Any, request_: Any, given: set[str], added: dict[str, Any]
) -> None:
    fields = {name: kind for name, kind in hints(request_).items() if name not in given}
    assert {name: keyword(kind) for name, kind in fields.items()} | added == typing.get_type_hints(keywords)


def test_a_miss_has_the_fields_of_its_report() -> None:
    fields = hints(wire.MissReport)
    problem = {name: fields.pop(name) for name in typing.get_type_hints(GemmProblem)}
    assert problem == typing.get_type_hints(GemmProblem)
    assert fields | {"problem": GemmProblem} == hints(Miss)


def hints(record: Any) -> dict[str, Any]:
    """The fields of a record or a request with their types."""
    names = getattr(record, "model_fields", None) or [field.name for field in dataclasses.fields(record)]
    found = typing.get_type_hints(record)
    return {name: found[name] for name in names}


def keyword(kind: Any) -> Any:
    """What a caller gives for a field of this type: the name of an enum, any iterable, a time as text."""
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return functools.reduce(operator.or_, map(keyword, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return Iterable[typing.get_args(kind)[0]]  # type: ignore[misc]
    if kind is pydantic.AwareDatetime:
        return datetime | str
    return str if isinstance(kind, type) and issubclass(kind, enum.StrEnum) else kind


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a problem as a dict": (lambda client: client.tune(PROBLEM.to_dict()), "GemmProblem"),
    "a problem as text": (lambda client: client.best_config("8x8x8"), "GemmProblem"),
    "one m": (lambda client: client.tune(PROBLEM, m=5), "one M belongs in the GemmProblem"),
    "rows that are no numbers": (lambda client: client.tune(PROBLEM, m="1-8"), r"1\.\.8192"),
    "another n": (lambda client: client.tune(PROBLEM, n=5), "n: give it in the GemmProblem"),
    "another layout": (lambda client: client.best_config(PROBLEM, layout="nn"), "layout: give it"),
    "one problem of many": (lambda client: client.lookup_many(PROBLEM), "such as a list"),
    "problems as tuples": (lambda client: client.lookup_many([(8, 8, 8)]), "GemmProblem"),
    "a problem as a dict, to look up here": (lambda client: client.lookup({"m": 8}, "host"), "GemmProblem"),
    "a product of a list": (
        lambda client: client.explain(np.eye(2), [[1.0]]),
        "NumPy arrays, got builtins.list",
    ),
    "a product of nothing": (
        lambda client: client.explain(np.eye(2), None),
        "NumPy arrays, got builtins.None",
    ),
    "a bias that is a list": (
        lambda client: client.explain(np.eye(2), np.eye(2), [1.0]),
        "NumPy arrays, got builtins.list",
    ),
    "a refresh within no time": (lambda client: client.refresh(None), "timeout must be seconds"),
    "a refresh within NaN seconds": (lambda client: client.refresh(float("nan")), "timeout must be seconds"),
    "a miss that is a problem": (lambda client: client.report_misses("sm_90", [PROBLEM]), "a miss is a Miss"),
    "an import of text": (lambda client: client.import_results(io.StringIO()), "a path or a binary file"),
    "an export to text": (lambda client: client.export(io.StringIO()), "a path or a binary file"),
    "a negative extent": (lambda client: client.shared_empty((-2, -3), "f4"), "extents from 0 on"),
    "an extent that is none": (lambda client: client.shared_empty("ab", "f4"), "give a shape"),
    "a type that is none": (lambda client: client.shared_empty(4, "float1"), "give a shape"),
    "more axes than arrays have": (lambda client: client.shared_empty((1,) * 65, "f4"), "give a shape"),
    "an extent beyond memory": (lambda client: client.shared_empty((0, 2**70), "f4"), "give a shape"),
    "objects in shared memory": (lambda client: client.shared_empty(4, object), "plain elements"),
    "an import of bytes": (lambda client: client.import_results(b"{}"), "a path or a binary file"),
    "no left operand": (lambda client: client.gemm(None, np.eye(2)), "a must be a NumPy array"),
    "no right operand": (lambda client: client.gemm(np.eye(2), None), "b must be a NumPy array"),
    "none to share": (lambda client: client.gemm(np.eye(2), None, shared=True), "b must be a NumPy array"),
    "a layout twice": (
        lambda client: client.gemm(np.eye(2), np.eye(2), layout="tn", transpose_a=True),
        "not both",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_are_refused_with_what_to_give(client: Client, name: str) -> None:
    call, reason = REFUSED[name]
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(InvalidProblem, match=reason):
        call(client)
    assert len(os.listdir("/proc/self/fd")) <= opened  # others may be collected meanwhile


NO_FLAGS: dict[str, Callable[[Any, Any], Any]] = {
    "transpose_a": lambda client, flag: client.gemm(np.eye(2), np.eye(2), transpose_a=flag),
    "transpose_b": lambda client, flag: client.gemm(np.eye(2), np.eye(2), transpose_b=flag, shared=True),
    "shared": lambda client, flag: client.gemm(np.eye(2), np.eye(2), shared=flag),
    "wait": lambda client, flag: client.tune(PROBLEM, wait=flag),
}


@pytest.mark.parametrize("flag", ["N", "no", 1, 0, None, np.array([True])], ids=str)
@pytest.mark.parametrize("name", NO_FLAGS)
def test_a_flag_is_true_or_false_and_nothing_that_counts_as_such(name: str, flag: Any) -> None:
    """``"N"`` is a BLAS's word for not transposed."""
    with Client(NOWHERE) as client, pytest.raises(InvalidProblem, match=f"{name} must .* use True or False"):
        NO_FLAGS[name](client, flag)


def test_flags_of_an_asynchronous_client_are_checked_too() -> None:
    async def ask() -> None:
        async with AsyncClient(NOWHERE) as client:
            await client.gemm(np.eye(2), np.eye(2), transpose_a="N")  # type: ignore[typeddict-item]

    with pytest.raises(InvalidProblem, match="transpose_a must"):
        asyncio.run(ask())


def test_a_layout_is_the_layout_of_the_request() -> None:
    assert gemm_query({"layout": "tn"}).layout is Layout.TN
    assert gemm_query({"transpose_b": True}).layout is Layout.NT
    flags: Any = {"transpose_a": np.True_, "transpose_b": np.False_}
    assert gemm_query(flags).layout is Layout.TN


OPTIONS: list[dict[str, Any]] = [
    {"max_regret": -5}, {"max_regret": math.nan}, {"max_regret": "0.1"}, {"deterministic": "no"},
    {"offline": "no"}, {"refresh_s": -3}, {"refresh_s": "3"}, {"cache_bytes": "3"}, {"cache_days": "3"},
    {"cache_dir": 3}, {"pin": 5}, {"trust": 5}, {"trust": "tw_secret"}, {"start_timeout": "3"},
    {"cache_dir": "a\0b"}, {"cache_dir": ""}, {"cache_dir": "~nobody-of-this-name/cache"},
    {"start_timeout": math.inf}, {"start_timeout": 1e10}, {"refresh_s": sys.maxsize}, {"timeout": math.inf},
    {"refresh_s": 0}, {"refresh_s": 0.01},
    {"timeout": 0}, {"timeout": -1.0}, {"timeout": math.nan}, {"timeout": "5"}, {"timeout": None},
    {"max_regret": True}, {"refresh_s": True}, {"start_timeout": True}, {"cache_days": True},
    {"timeout": True}, {"cache_bytes": True}, {"cache_bytes": 0.5}, {"kernel_bytes": False},
    {"kernel_bytes": 1.5},
    {"timeout": 1e300}, {"key": "tw_1\n"}, {"key": "tw_1 "}, {"key": "tw_\xe9"}, {"key": b"tw_1"},
]  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_an_option_out_of_range_or_of_another_type_is_refused(option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(InvalidProblem, match=name):
        Client(NOWHERE, **option)


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_an_empty_key_is_not_taken_for_none(make: Callable[..., Any]) -> None:
    with pytest.raises(InvalidProblem, match="key is empty"):
        make(NOWHERE, key="")


def test_numbers_of_numpy_and_whole_floats_are_taken() -> None:
    given: Any = {"cache_bytes": np.int64(5), "kernel_bytes": 1e9, "refresh_s": np.float16(300)}
    made = StartOptions(**given)
    assert (made.bounds.size, made.kernel_bytes, made.refresh_s) == (5, 10**9, 300)


@pytest.mark.parametrize("shared", [False, True])
def test_a_masked_array_is_not_sent_without_its_mask(shared: bool) -> None:
    masked = np.ma.masked_array(np.ones((4, 4)), mask=True)  # type: ignore[no-untyped-call]
    with Client(NOWHERE) as tw, pytest.raises(InvalidProblem, match="mask is not sent"):
        tw.gemm(masked, np.ones((4, 4)), shared=shared)
