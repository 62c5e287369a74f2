"""Which kernel of a config set runs a problem: the fallback chain, and what kernels need of near problems."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_samples import artifact_of, config_of
from hypothesis import given, settings
from hypothesis import strategies as st
from set_server import SetService, config_set, entry, serving

from tilewright import Artifact, Client, GemmProblem
from tilewright.artifact import Preconditions
from tilewright.config_sets.lookup import Catalog
from tilewright.errors import ArtifactError
from tilewright.schema.codec import encode
from tilewright.schema.config_set import ConfigSet
from tilewright.schema.match import LookupResult, MatchLimits

TUNED = GemmProblem(96, 80, 64, "float32", "nn")
LARGER = dataclasses.replace(TUNED, m=192)
KERNEL = artifact_of(config_of(kc=32, mc=32, nc=64), dataclasses.replace(TUNED, m=64, n=64, k=64))
BANDS = [
    {"max_distance": 0.5, "expected": 0.02, "p90": 0.1, "pairs": 9},
    {"max_distance": 2.0, "expected": 0.2, "p90": 0.4, "pairs": 30},
]


def lookups(limits: MatchLimits, **changes: Any) -> Callable[[GemmProblem], LookupResult]:
    catalog = Catalog.of(ConfigSet.from_bytes(config_set([entry(TUNED, KERNEL, **changes)], BANDS)))
    return functools.partial(catalog.lookup, limits=limits)


def speedup(low: float) -> dict[str, float]:
    return {"value": low + 0.1, "low": low, "high": low + 0.2, "confidence": 0.99}


def test_the_fallback_chain() -> None:
    """``near`` is half an octave of m away or less, where 2 % are expected; ``far`` is 1, where 20 % are."""
    near, far = dataclasses.replace(TUNED, m=128), LARGER
    default = lookups(MatchLimits())
    assert default(TUNED).kind == "exact"
    found = default(near)
    assert (found.kind, found.expected_regret, found.miss) == ("nearest", 0.02, True)
    assert found.distance == pytest.approx(0.415, abs=1e-3)  # log2(128 / 96)
    assert default(far).reason == "no tuned kernel"
    assert lookups(MatchLimits(max_regret=0.3))(far).kind == "nearest"
    assert lookups(MatchLimits(max_regret=3.0))(dataclasses.replace(TUNED, m=960)).kind == "vendor"
    assert lookups(MatchLimits(max_regret=None))(near).kind == "vendor"
    for other in ({"layout": "nt"}, {"batch": 2}, {"has_bias": True}, {"activation": "relu"}):
        assert default(dataclasses.replace(TUNED, **other)).kind == "vendor"


def test_what_is_not_expected_to_win_does_not_run() -> None:
    near = dataclasses.replace(TUNED, m=128)
    lost = lookups(MatchLimits(), use_vendor=True, verdict="vendor")
    assert lost(TUNED).reason == "the vendor library was faster in the race"
    assert lost(near).kind == "vendor"
    assert lookups(MatchLimits(), speedup=speedup(1.01))(near).kind == "vendor"  # less than the 2 % to lose
    assert lookups(MatchLimits(), speedup=speedup(1.03))(near).kind == "nearest"
    shaky = lookups(MatchLimits(deterministic=True), deterministic=False)
    assert shaky(TUNED).reason == "the tuned kernel is not repeatable bit by bit"
    assert shaky(near).kind == "vendor"


def test_one_catalog_answers_for_every_policy() -> None:
    catalog = Catalog.of(ConfigSet.from_bytes(config_set([entry(TUNED, KERNEL)], BANDS)))
    asked = (None, 0.1, 0.3, 0.1, None)
    found = [catalog.lookup(LARGER, MatchLimits(max_regret)).kind for max_regret in asked]
    assert found == ["vendor", "vendor", "nearest", "vendor", "vendor"]


def needing(**needs: int) -> Artifact:
    """The kernel with these preconditions."""
    plan = dataclasses.replace(KERNEL.plan, preconditions=Preconditions(**needs))
    return dataclasses.replace(KERNEL, plan=plan)


NEAREST = dataclasses.replace(TUNED, m=100)
SECOND = dataclasses.replace(TUNED, m=112)


@pytest.mark.parametrize(
    ("needs", "asked"),
    [
        ({"align_a": 16}, {"k": 66}),  # rows of A have 66 x 4 bytes
        ({"align_b": 16}, {"n": 82}),
        ({"align_d": 16}, {"n": 82}),
        ({"max_k": 64}, {"k": 68}),
        ({"max_extent": 100}, {"m": 101}),
    ],
)
def test_a_near_kernel_that_cannot_run_gives_way_to_the_next(
    needs: dict[str, int], asked: dict[str, int]
) -> None:
    problem = dataclasses.replace(NEAREST, **asked)
    first, second = entry(NEAREST, needing(**needs)), entry(SECOND, KERNEL)
    both = Catalog.of(ConfigSet.from_bytes(config_set([first, second], BANDS)))
    chosen = both.lookup(problem, MatchLimits())
    assert (chosen.kind, chosen.entry and chosen.entry.problem) == ("nearest", SECOND)
    alone = Catalog.of(ConfigSet.from_bytes(config_set([first], BANDS))).lookup(problem, MatchLimits())
    assert (alone.kind, alone.reason, alone.entry) == ("vendor", "no tuned kernel", None)


def test_a_client_runs_the_next_near_kernel(tmp_path: Path) -> None:
    strict = needing(max_k=64)
    content = config_set([entry(NEAREST, strict), entry(SECOND, KERNEL)], BANDS)
    a, b = np.ones((100, 68), "float32"), np.ones((68, 80), "float32")
    service = SetService(content, [strict, KERNEL])
    with serving(service), Client(service.url, cache_dir=tmp_path) as tw:
        np.testing.assert_array_equal(tw.start().matmul(a, b), a @ b)
        assert tw.stats == {"tuned: nearest": 1}


def test_kernels_of_an_earlier_format_are_taken_to_need_what_their_problem_has() -> None:
    old = entry(TUNED, KERNEL)
    del old["preconditions"]
    assert encode(ConfigSet.from_bytes(config_set([old], format=2)).entries[0].preconditions) == {
        **encode(Preconditions()),
        "align_a": 16,
        "align_b": 16,
        "align_d": 16,
        "max_k": 64,
    }
    catalog = Catalog.of(ConfigSet.from_bytes(config_set([old], BANDS, format=2)))
    near = {"m": 100}, {"k": 60}, {"n": 84}, {"k": 68}, {"n": 82}
    found = [catalog.lookup(dataclasses.replace(TUNED, **one), MatchLimits()).kind for one in near]
    assert found == ["nearest", "nearest", "nearest", "vendor", "vendor"]


SMALL, BIG, OTHER = ("1" * 64, "2" * 64, "3" * 64)


def row(m: int, won_by: str, kernels: dict[str, tuple[float, float]], **changes: Any) -> dict[str, Any]:
    """The row of a ladder, won by a kernel; each kernel has its regret and its speed-up."""
    found = entry(dataclasses.replace(TUNED, m=m), KERNEL)
    told = [{"artifact": name, "regret": on[0], "speedup": on[1]} for name, on in kernels.items()]
    return found | {"artifact": won_by, "kernels": told} | changes


def ladder(*rows: dict[str, Any]) -> Callable[..., LookupResult]:
    catalog = Catalog.of(ConfigSet.from_bytes(config_set(rows, BANDS)))
    return lambda m, max_regret=0.1: catalog.lookup(dataclasses.replace(TUNED, m=m), MatchLimits(max_regret))


ROW_64 = row(64, SMALL, {SMALL: (0.0, 1.5), BIG: (0.03, 1.4)})
ROW_128 = row(128, BIG, {SMALL: (0.06, 1.2), BIG: (0.01, 1.3)})


def test_a_changed_catalog_is_that_of_the_changed_set_and_leaves_the_one_before() -> None:
    kept, gone, new = (
        ConfigSet.from_bytes(config_set([one], BANDS)).entries[0]
        for one in (ROW_64, ROW_128, entry(TUNED, KERNEL))
    )
    rows = ConfigSet.from_bytes(config_set([ROW_64, ROW_128], BANDS))
    before = Catalog.of(rows)
    after = before.changed(rows.entries[1:], [new], rows.near)
    afresh = Catalog().changed((), [new, kept], rows.near)
    limits = MatchLimits(1.0)
    for m in (60, 64, 80, 100, 128, 200):
        asked = dataclasses.replace(kept.problem, m=m)
        assert after.lookup(asked, limits) == afresh.lookup(asked, limits)
    assert after.lookup(TUNED, limits).kind == "exact"
    assert before.lookup(gone.problem, limits).entry == gone
    assert after.lookup(gone.problem, limits).entry != gone
    assert before.lookup(TUNED, limits).kind != "exact"


PROBLEMS = [dataclasses.replace(TUNED, m=m, n=n) for m, n in ((64, 80), (96, 80), (128, 80), (128, 160))]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(PROBLEMS), st.sampled_from([0, 1, None]), min_size=1)))
def test_a_catalog_after_changes_is_that_of_the_set_then(
    rounds: list[dict[GemmProblem, int | None]],
) -> None:
    """Also once it was changed further. A problem gets a row like one of these two, or loses its own."""
    rows = ConfigSet.from_bytes(config_set([ROW_64, ROW_128], BANDS))
    made = [(Catalog(), dataclasses.replace(rows, entries=()))]
    for number, changes in enumerate(rounds):
        catalog, before = made[-1]
        there = {entry.problem: entry for entry in before.entries}
        gone = [there.pop(problem) for problem in changes if problem in there]
        alike = {problem: rows.entries[kind] for problem, kind in changes.items() if kind is not None}
        new = [dataclasses.replace(one, problem=problem, median_us=number) for problem, one in alike.items()]
        near = rows.near[number % 2 :]
        after = dataclasses.replace(before, entries=(*there.values(), *new), near=near)
        made.append((catalog.changed(gone, new, near), after))
    for catalog, of in made:
        afresh = Catalog.of(of)
        for m, n in itertools.product((60, 64, 80, 96, 100, 128, 200), (80, 120, 160)):
            asked, limits = dataclasses.replace(TUNED, m=m, n=n), MatchLimits(1.0)
            assert catalog.lookup(asked, limits) == afresh.lookup(asked, limits)


def test_between_two_rows_the_kernel_that_lost_less_on_both_answers() -> None:
    # Small loses 6 % at 128. Big loses 3 % at 64 and 1 % at 128: it answers, with 3 %.
    asked = ladder(ROW_64, ROW_128)
    found = asked(80)
    assert (found.kind, found.expected_regret, found.miss) == ("ladder", 0.03, False)
    assert found.entry is not None
    assert (found.entry.problem.m, found.entry.artifact) == (128, BIG)
    assert found.distance == pytest.approx(0.678, abs=1e-3)  # log2(128 / 80)
    assert [asked(m).kind for m in (64, 65, 127, 128)] == ["exact", "ladder", "ladder", "exact"]
    assert asked(80, None).reason == "no tuned kernel"


def test_what_lost_more_than_may_be_lost_does_not_answer() -> None:
    found = ladder(ROW_64, ROW_128)(80, 0.02)
    assert (found.kind, found.reason, found.miss) == ("vendor", "no kernel of its ladder may run", True)


def test_no_kernel_answers_that_was_slower_than_the_vendor_on_a_row() -> None:
    slow_big = row(64, SMALL, {SMALL: (0.0, 1.5), BIG: (0.03, 0.98)})
    found = ladder(slow_big, ROW_128)(80)
    assert found.entry is not None
    assert (found.entry.artifact, found.expected_regret) == (SMALL, 0.06)
    lost = row(64, SMALL, {SMALL: (0.0, 0.97), BIG: (0.03, 0.95)}, use_vendor=True, verdict="vendor")
    found = ladder(lost, ROW_128)(80)
    assert (found.kind, found.miss) == ("vendor", False)
    assert found.reason == "the vendor library was faster on a row beside it"
    disturbed = ROW_64 | {"use_vendor": True, "verdict": "disturbed"}
    assert ladder(disturbed, ROW_128)(80).kind == "vendor"
    stood_in = {"baseline": {"name": "numpy", "median_us": 3.0, "detail": {"stands_in_for": "int4"}}}
    assert ladder(slow_big | stood_in, ROW_128)(80).expected_regret == 0.03


@pytest.mark.parametrize(("high", "answers"), [(1.52, BIG), (1.501, SMALL)])
def test_a_kernel_that_loses_within_its_interval_may_answer(high: float, answers: str) -> None:
    # Big is at 0.995 of the vendor library: 0.995 * 1.52 / 1.5 > 1, 0.995 * 1.501 / 1.5 < 1.
    interval = {"speedup": {"value": 1.5, "low": 1.48, "high": high, "confidence": 0.99}}
    level = row(64, SMALL, {SMALL: (0.0, 1.5), BIG: (0.03, 0.995)}, **interval)
    found = ladder(level, ROW_128)(80)
    assert found.entry is not None
    assert found.entry.artifact == answers


@pytest.mark.parametrize("value", [0.0, -0.0, -1.5, math.nan])
def test_a_set_with_a_speedup_that_is_none_is_refused(value: float) -> None:
    none = {"speedup": {"value": value, "low": 1.4, "high": 1.6, "confidence": 0.99}}
    with pytest.raises(ArtifactError, match=r"not a config set, fetch it again: .*value"):
        ladder(ROW_64 | none, ROW_128)(80)


def test_outside_of_a_ladder_near_matches_answer() -> None:
    asked = ladder(ROW_64, ROW_128)
    assert [asked(m).kind for m in (60, 140, 500)] == ["nearest", "nearest", "vendor"]
    apart = row(128, OTHER, {OTHER: (0.0, 1.5)})
    assert ladder(ROW_64, apart)(70).kind == "nearest"  # no kernel was measured on both rows


def test_rows_far_apart_do_not_answer() -> None:
    wide = row(129, BIG, {SMALL: (0.06, 1.2), BIG: (0.01, 1.3)})
    assert ladder(ROW_64, wide)(80).kind == "nearest"


def test_a_result_between_two_rows_leaves_them_a_ladder_unless_the_vendor_library_won_it() -> None:
    alone = entry(dataclasses.replace(TUNED, m=96), KERNEL)
    asked = ladder(ROW_64, alone, ROW_128)
    assert [asked(m).kind for m in (80, 96, 110)] == ["ladder", "exact", "ladder"]
    asked = ladder(ROW_64, alone | {"verdict": "vendor", "use_vendor": True}, ROW_128)
    assert [asked(m).kind for m in (80, 96, 110)] == ["nearest", "vendor", "nearest"]


def test_kernels_between_rows_must_be_able_to_run() -> None:
    strict = ROW_128 | {"preconditions": encode(Preconditions(max_extent=100))}
    asked = ladder(ROW_64, strict)
    found = asked(110)
    assert found.entry is not None
    assert (found.kind, found.entry.artifact) == ("ladder", SMALL)
