"""What the clients' methods take, turned into calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, TypedDict

from tilewright import calls, wire
from tilewright.errors import InvalidProblem
from tilewright.problem import GemmProblem, Layout

_LOOKUPS = 250  # a request


class TuneOptions(TypedDict, total=False):
    """How to tune: see :class:`tilewright.wire.TuneBody`; ``idempotency_key`` makes a retry safe."""

    families: list[str]
    max_trials: int
    max_seconds: float
    seed: int
    policy: str
    min_gain_per_s: float
    device: str
    idempotency_key: str


class BestOptions(TypedDict, total=False):
    """Where to look: ``arch`` or ``device_class``; ``policy`` is ``exact`` or ``nearest``, then within
    ``max_regret`` where one is given; ``deterministic`` asks for the same bits at every launch."""

    arch: str
    device_class: str
    policy: str
    max_regret: float
    deterministic: bool


class GemmOptions(TypedDict, total=False):
    """How to compute D = act(alpha * op(A) op(B) + beta * C + bias); ``transpose_a`` says that A is
    stored K x M, ``transpose_b`` that B is stored N x K, ``dtype="tfloat32"`` that float32 operands may
    be multiplied with 10 bits of mantissa; ``policy="nearest"`` allows kernels of near problems within
    ``max_regret``, a tenth unless given, ``deterministic`` only those that repeat bit by bit."""

    transpose_a: bool
    transpose_b: bool
    alpha: float
    beta: float
    activation: str
    dtype: str
    out_dtype: str
    acc_dtype: str
    device: str
    policy: str
    max_regret: float
    deterministic: bool


def tune(problem: GemmProblem, options: TuneOptions) -> calls.Call[wire.JobView]:
    """The call for ``tune``.

    Raises:
        InvalidProblem: an option is out of range.
    """
    fields: dict[str, Any] = {**problem.to_dict(), **options}
    key = fields.pop("idempotency_key", None)
    return calls.tune(checked(wire.TuneBody, fields), key)


def best_config(problem: GemmProblem, options: BestOptions) -> calls.Call[wire.BestConfigView]:
    """The call for ``best_config``.

    Raises:
        InvalidProblem: neither an architecture nor a device class is given.
    """
    return calls.best_config(checked(wire.BestQuery, {**problem.to_dict(), **options}))


def configs(options: BestOptions, cursor: str | None) -> calls.Call[wire.BestConfigList]:
    """The call for one page of ``configs``.

    Raises:
        InvalidProblem: neither an architecture nor a device class is given.
    """
    return calls.best_configs(checked(wire.BestQuery, {**options, "limit": 1000, "cursor": cursor}))


def lookups(problems: Iterable[GemmProblem], options: BestOptions) -> Iterator[calls.Call[wire.LookupAnswer]]:
    """The calls for ``lookup_many``, of bodies that every service takes.

    Raises:
        InvalidProblem: neither an architecture nor a device class is given.
    """
    items = iter(problems)
    while part := [problem.to_dict() for problem in itertools.islice(items, _LOOKUPS)]:
        yield calls.lookups(checked(wire.LookupBody, {**options, "problems": part}))


def gemm(operands: dict[str, Any], options: GemmOptions) -> calls.Call[calls.GemmAnswer]:
    """The call for ``gemm``; operands that are None are left out.

    Raises:
        InvalidProblem: an array cannot be converted or an option is unknown.
    """
    from tilewright.tensors import from_array

    fields: dict[str, Any] = dict(options)
    letters = ("t" if fields.pop(name, False) else "n" for name in ("transpose_a", "transpose_b"))
    fields["layout"] = Layout("".join(letters))
    tensors = {name: from_array(name, array) for name, array in operands.items() if array is not None}
    return calls.gemm(tensors, checked(wire.GemmQuery, fields))


def check_out(out: Any) -> None:
    """Refuse room for a result that comes over the wire.

    Raises:
        InvalidProblem: there is some.
    """
    if out is not None:
        raise InvalidProblem("out goes with shared=True; what comes over the wire has memory of its own")


def page(limit: int, cursor: str | None) -> wire.PageQuery:
    """A page of a list.

    Raises:
        InvalidProblem: the limit is out of range.
    """
    return checked(wire.PageQuery, {"limit": limit, "cursor": cursor})


def checked(model: type[calls.M], fields: dict[str, Any]) -> calls.M:
    """A request made of these fields.

    Raises:
        InvalidProblem: one breaks a rule.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(fields)
    except ValidationError as error:
        rules = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'request'}: {e['msg']}" for e in error.errors())
        raise InvalidProblem(rules) from error
