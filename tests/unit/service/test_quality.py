"""Results of families that are gone, what to run, estimates of unmeasured times, and the T4 mapping."""

from __future__ import annotations

import dataclasses
import io
import itertools
import sys
import tracemalloc
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from store_samples import best

from service.engine.base import Engine
from service.gemm import estimates
from service.gemm.estimates import Estimates
from service.http import conditional
from service.results import export, uploads
from service.results.quality import ResultQuality
from tilewright import wire
from tilewright.schema.codec import decode
from tilewright.schema.config import Config
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import STANDS_IN, Baseline, Outcome, Timing, Trial
from tilewright.wire import Format
from tuner.store import exchange
from tuner.store.exchange import TrialOfJob, Winner


def test_the_rounding_of_a_family_that_is_gone_is_unknown() -> None:
    without_queues = cast(Engine, SimpleNamespace(queues={}))
    gone = dataclasses.replace(best(GemmProblem(8, 8, 8)), config=Config.of("cublas", {}))
    view = ResultQuality(without_queues).view(gone)
    assert (view.numerics, view.staleness) == ("unknown", "source-changed")


@pytest.mark.parametrize(
    ("speedup", "low", "high", "detail", "disturbed", "verdict", "use_vendor"),
    [
        (0.98, 0.95, 1.01, {}, "", "tie", True),
        (1.02, 0.99, 1.05, {}, "", "tie", False),
        (1.0, 0.98, 1.02, {}, "", "tie", False),
        (1.1, 1.08, 1.12, {}, "", "kernel", False),
        (0.9, 0.88, 0.92, {}, "", "vendor", True),
        (0.9, 0.88, 0.92, {STANDS_IN: "float8_e5m2"}, "", "kernel", False),
        (3.36, 3.23, 3.7, {}, "others were busy", "disturbed", True),
        (3.36, 3.23, 3.7, {STANDS_IN: "float8_e5m2"}, "others were busy", "disturbed", False),
    ],
)
def test_what_to_run_and_what_the_race_can_tell(
    speedup: float,
    low: float,
    high: float,
    detail: dict[str, str],
    disturbed: str,
    verdict: str,
    use_vendor: bool,
) -> None:
    found = dataclasses.replace(
        best(GemmProblem(512, 512, 512), speedup=speedup, disturbed=disturbed),
        baseline=Baseline("cublaslt", 1.0, detail),
        speedup_low=low,
        speedup_high=high,
    )
    assert (found.verdict, found.use_vendor) == (verdict, use_vendor)


def test_an_estimate_is_bound_by_arithmetic_or_by_memory() -> None:
    rates = Estimates({DType.FLOAT16: 1e6}, other_flops=1e5, bandwidth=1e4)
    # 2 x 1000^3 operations at 1e6/us: 2000 us; its 6 MB take 600 us.
    assert rates.micros(GemmProblem(1000, 1000, 1000)) == pytest.approx(2000.0)
    # One row: 2 x 10^6 operations take 2 us, but its 2,004,000 bytes take 200.4 us.
    assert rates.micros(GemmProblem(1, 1000, 1000)) == pytest.approx(200.4)
    # Another type: 2e9 operations at 1e5/us.
    assert rates.micros(GemmProblem(1000, 1000, 1000, "float32")) == pytest.approx(20_000.0)


def test_a_measured_time_is_taken() -> None:
    timed = wire.MissReport(m=8, n=8, k=8, count=3, vendor_us=7.0)
    [measured] = estimates.reports([timed], lambda: pytest.fail("nothing is to be estimated"))
    assert (measured.count, measured.time_us, measured.measured) == (3, 7.0, True)
    asked, missing = list[object](), wire.MissReport(m=8, n=8, k=8)
    found = estimates.reports([timed, missing, missing], lambda: asked.append(1) or Estimates({}, 1e5, 1e4))
    assert [one.measured for one in found] == [True, False, False]
    assert len(asked) == 1


def test_every_outcome_has_a_place_in_t4() -> None:
    made = {outcome: export.result(line(outcome), {})["invalidity"] for outcome in Outcome}
    assert made[Outcome.OK] == made[Outcome.PRUNED] == "correct"
    assert made[Outcome.WRONG_RESULT] == "correctness"
    assert set(made.values()) == {"timeout", "compile", "runtime", "correctness", "constraints", "correct"}


def test_t4_times_are_milliseconds() -> None:
    result = export.result(line(Outcome.OK, timed=True), {})
    assert result["times"]["runtimes"] == [0.003, 0.001, 0.002]
    assert result["times"]["compilation_time"] == 500.0
    assert result["measurements"] == [{"name": "time", "value": 0.002, "unit": "ms"}]
    assert export.result(line(Outcome.TIMEOUT), {})["measurements"] == []


def line(outcome: Outcome, timed: bool = False) -> TrialOfJob:
    timing = Timing((3.0, 1.0, 2.0), 2.0, 1.0, 3.0, "x") if timed else None
    trial = Trial(0, Config.of("host", {"mc": 8}), outcome=outcome, timing=timing, compile_s=0.5)
    return TrialOfJob("0" * 32, trial, datetime(2026, 1, 2, tzinfo=UTC))


@pytest.mark.parametrize("text", [b"{", b'{"a":NaN}', b'{"a":-Infinity}', b'{"a":1e999}', b'"\\u0000"'])
def test_what_no_database_keeps_is_refused(text: bytes) -> None:
    with pytest.raises(uploads.BadLine, match="line 7"):
        uploads.strict_json("line 7", text)


def test_deep_nesting_and_long_numbers_are_refused() -> None:
    for text in (b"[" * 100_000, b"1" * 10_000):
        with pytest.raises(uploads.BadLine):
            uploads.strict_json("line 1", text)


def test_what_a_library_reports_is_nested_32_deep_at_most() -> None:
    """Nothing deeper could be answered."""
    plain = winner_line()
    for levels in (31, 32, 900):
        detail: object = 1
        for level in range(levels):
            detail = {"inner": detail} if level % 2 else [detail]
        plain["baseline"]["detail"] = {"outer": detail}
        if levels < 32:
            uploads.record("line 1", plain)
            continue
        with pytest.raises(uploads.BadLine, match=r"baseline.detail: must have .* 32 deep at most"):
            uploads.record("line 1", plain)


def test_reading_a_flat_object_looks_for_no_deeper_levels() -> None:
    """A client reads one with each entry of a config set."""

    def calls(detail: dict[str, Any]) -> int:
        plain, counted = {"name": "cublaslt", "median_us": 1.0, "detail": detail}, itertools.count()
        decode(Baseline, plain)
        sys.setprofile(lambda _frame, kind, _of: next(counted) if kind == "call" else None)
        try:
            decode(Baseline, plain)
        finally:
            sys.setprofile(None)
        return next(counted)

    nested: dict[str, Any] = {}
    for _ in range(20):
        nested = {"inner": nested}
    assert calls({}) < calls({"tile": 64, "split_k": 1}) < calls(nested) / 2


@pytest.mark.parametrize(
    ("of", "name"),
    [
        ("timing", "median_us"),
        ("timing", "low_us"),
        ("timing", "high_us"),
        ("baseline", "median_us"),
    ],
)
def test_a_time_of_nothing_is_refused(of: str, name: str) -> None:
    """Answers divide by it."""
    for wrong in (0, 0.0, -1.5):
        plain = winner_line()
        plain[of][name] = wrong
        with pytest.raises(uploads.BadLine, match=f"{of}.{name}: must be in"):
            uploads.record("line 1", plain)


def winner_line() -> dict[str, Any]:
    return exchange.to_plain(Winner(best(GemmProblem(8, 8, 8)), datetime(2026, 1, 2, tzinfo=UTC)))


def t4(inside: bytes) -> list[str]:
    """What is told of a T4 file with this one result."""
    with pytest.raises(uploads.BadLine) as raised:
        list(uploads.records(io.BytesIO(b'{"results":[' + inside + b"]}"), Format.T4))
    return str(raised.value).split("; ")


def test_a_t4_file_is_nested_64_deep_at_most() -> None:
    for begin, end in ((b"[", b"]"), (b'{"a":', b"}")):
        assert t4(begin * 62 + b"1" + end * 62)[0].startswith("result 0: no member 'tilewright'")
        assert t4(begin * 63 + b"1" + end * 63) == [
            "the T4 file: lists and objects may be nested 64 deep at most",
            "export it again",
        ]
        assert t4(begin * 3000)[0].endswith("64 deep at most")


def test_long_names_in_each_other_take_no_more_memory_than_their_text() -> None:
    inside = b'{"%b":' % (b"x" * 300) * 62 + b"1" + b"}" * 62
    t4(inside)
    tracemalloc.start()
    try:
        t4(inside)
        assert tracemalloc.get_traced_memory()[1] < 2**18
    finally:
        tracemalloc.stop()


def test_conditional_requests() -> None:
    assert conditional.has('"a", W/"b"', "b")
    assert conditional.has("*", "b")
    assert not conditional.has('"a"', "b")
    assert not conditional.has(None, "b")
