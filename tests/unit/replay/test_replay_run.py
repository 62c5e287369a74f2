"""Replayed jobs: the live loop on a recorded space, noise and all."""

import dataclasses
import math
import types
from collections.abc import Callable

import numpy as np
import pytest
from toy_family import CUDA_DEVICE, DEVICE, PROBLEM, TINY, TOY, toy_artifact, toy_space

from kernels.base.knobs import Knob
from kernels.host.family import HOST
from tilewright.schema.config import Config
from tilewright.schema.job import Sampler
from tilewright.schema.problem import DType, GemmProblem, Layout
from tilewright.schema.trial import Outcome
from tuner.devices.base import Telemetry
from tuner.measure import timing as timing_
from tuner.measure.race import RaceRules
from tuner.measure.stats import median
from tuner.replay.device import RecordedFamily, ReplayBench, ReplayBuilder, narrowed
from tuner.replay.report import bootstrap, summarize
from tuner.replay.run import RunResult, RunSpec, run
from tuner.replay.runner import ReplayPlan, replay
from tuner.replay.space import Entry, RecordedSpace, SpaceError, assemble
from tuner.search.points import valid_points

FIFTH = 5


def failing(config: Config) -> bool:
    return int(config.digest, 16) % FIFTH == 0


def timeless(result: RunResult) -> RunResult:
    return dataclasses.replace(result, sampler_s=0.0)


def test_a_run_spends_its_budget_and_comes_near_the_optimum() -> None:
    result = run(toy_space(0.01), RunSpec(Sampler.STAGED, 60, 0))
    assert result.measured == len(result.found) == 60
    assert result.asked == 60
    assert result.repeated == 0
    assert result.found[-1] > 0.9
    assert result.winner is not None
    assert result.winner > 0.9
    assert 0 <= result.flips <= 1
    assert result.sampler_s > 0
    assert result.device_s > 60 * 0.25


@pytest.mark.long
def test_a_run_ends_where_it_is_expected_to_gain_too_little() -> None:
    spec = RunSpec(Sampler.STAGED, 200, 0, min_gain_per_s=0.001)
    ended = run(toy_space(), spec)
    whole = run(toy_space(), dataclasses.replace(spec, min_gain_per_s=0.0))
    assert ended.measured < 100
    assert whole.measured == 200
    assert ended.found == whole.found[: ended.measured]
    assert ended.found[-1] > 0.997 * whole.found[-1]


def test_without_noise_what_is_found_never_gets_worse_and_wins() -> None:
    result = run(toy_space(), RunSpec(Sampler.STAGED, 40, 1))
    assert list(result.found) == sorted(result.found)
    # The race may prefer a config at most 2 % slower that costs less.
    assert result.winner is not None
    assert result.found[-1] >= result.winner > result.found[-1] / 1.021
    assert result.flips == 0


@pytest.mark.parametrize("device", [CUDA_DEVICE, DEVICE], ids=["cuda", "host"])
def test_the_same_spec_gives_the_same_run(device: object) -> None:
    space = toy_space(0.05, device=device)  # type: ignore[arg-type]
    spec = RunSpec(Sampler.STAGED, 30, 7)
    assert timeless(run(space, spec)) == timeless(run(space, spec))
    assert run(space, spec).found != run(space, dataclasses.replace(spec, seed=8)).found


def test_failures_are_asked_but_not_measured() -> None:
    result = run(toy_space(0.01, failing), RunSpec(Sampler.STAGED, 60, 0))
    assert result.measured == 60
    assert result.asked > 60
    assert result.winner is not None


def test_where_everything_fails_nothing_wins() -> None:
    """Only the optimum works, and a budget of one is spent elsewhere."""
    best = TOY.make(48, 5, "columns", 2, 4)
    space = toy_space(0.0, lambda config: config != best)
    result = run(space, RunSpec(Sampler.STAGED, 1, 0))
    assert (result.winner, result.found) == (None, ())
    assert result.asked == 4
    with pytest.raises(SpaceError, match="none of 1 runs"):
        summarize([result], 1)


def test_initial_configs_come_first() -> None:
    space = toy_space()
    result = run(space, RunSpec(Sampler.STAGED, 20, 0, tuple(space.best(8))))
    assert result.found[0] == 1.0


def test_a_small_space_is_exhausted() -> None:
    result = run(toy_space(family=TINY), RunSpec(Sampler.STAGED, 200, 0))
    assert result.measured == 30
    assert result.found[-1] == 1.0


def test_noise_is_drawn_from_the_samples_of_the_config() -> None:
    space = toy_space(0.2)
    bench, builder = ReplayBench(space, 0), ReplayBuilder(space)
    config = space.index.config(3)
    artifact = builder.submit("toy", config, PROBLEM, CUDA_DEVICE).result().artifact
    assert artifact is not None
    result = bench.trial(artifact, PROBLEM, None, 1.0)
    assert result.outcome is Outcome.OK
    assert result.timing is not None
    assert set(result.timing.samples_us) <= set(space.entries[3].samples_us)
    assert len(result.timing.samples_us) >= timing_.FEWEST_SAMPLES
    assert bench.trial(artifact, PROBLEM, None, 1.0) == result
    assert ReplayBench(space, 1).trial(artifact, PROBLEM, None, 1.0) != result


def test_slow_candidates_are_stopped_after_the_probes() -> None:
    space = toy_space()
    bench, builder = ReplayBench(space, 0), ReplayBuilder(space)
    slow = space.index.config(int(np.nanargmax(space.true_us)))
    artifact = builder.submit("toy", slow, PROBLEM, CUDA_DEVICE).result().artifact
    assert artifact is not None
    result = bench.trial(artifact, PROBLEM, space.optimum_us, 1.0)
    assert result.outcome is Outcome.PRUNED
    assert result.timing is not None
    assert len(result.timing.samples_us) == timing_.PROBES


def test_how_many_samples_a_candidate_deserves() -> None:
    """Steady ones settle at once, scattered ones never do, slow ones end after the probes."""

    def steady(_number: int) -> float:
        return 10.0

    assert timing_.take(steady, None) == ([10.0] * timing_.FEWEST_SAMPLES, False)
    for fewest in (timing_.FEWEST_OF_QUICK, 20):
        assert timing_.take(steady, None, fewest) == ([10.0] * fewest, False)
    assert timing_.take(steady, 10.0 / timing_.PRUNE_RATIO - 0.01, 20) == ([10.0] * timing_.PROBES, True)
    disturbed = iter([40.0, 15.0, *[10.0] * timing_.MOST_SAMPLES])  # its median of probes is slow, it is not
    assert not timing_.take(lambda _: next(disturbed), 10.0)[1]
    samples, pruned = timing_.take(lambda number: 10.0 + number % 5, None)
    assert (len(samples), pruned) == (timing_.MOST_SAMPLES, False)
    for incumbent_us, count in ((11.5, timing_.MOST_OF_A_LEADER), (10.9, timing_.MOST_SAMPLES)):
        assert len(timing_.take(lambda number: 11.0 + number % 2, incumbent_us)[0]) == count


def test_bursts_are_short_and_begin_after_a_rest(monkeypatch) -> None:
    """Samples of 4 ms come in bursts of 7, those of 30 ms one by one; a slow kernel ends in the first."""
    now, rests = [0.0], list[tuple[float, int]]()
    taken: list[int] = []
    monkeypatch.setattr(timing_.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(timing_.time, "sleep", lambda seconds: rests.append((seconds, len(taken))))

    def lasting(seconds: float) -> Callable[[int], float]:
        def sample(number: int) -> float:
            taken.append(number)
            now[0] += seconds
            return 10.0

        return sample

    def restless(seconds: float, incumbent_us: float | None = None) -> list[int]:
        rests.clear()
        taken.clear()
        samples, _ = timing_.take(lasting(seconds), incumbent_us, rest_s=0.06)
        assert taken == list(range(len(samples)))
        assert all(rest == 0.06 for rest, _ in rests)
        return [number for _, number in rests]

    assert restless(0.004) == [0, 7]
    assert restless(0.03) == list(range(timing_.FEWEST_SAMPLES))
    assert restless(0.004, 8.0) == [0]
    timing_.take(lasting(0.004), None)
    assert len(rests) == 1, "without a power limit there is no rest"


@pytest.mark.parametrize(
    ("power_watts", "fewest", "rests"),
    [
        (0, timing_.FEWEST_SAMPLES, []),
        (700, timing_.FEWEST_SAMPLES, [timing_.REST_S]),
        (700, 2 * timing_.FEWEST_SAMPLES, [timing_.REST_S]),
        (700, timing_.FEWEST_OF_QUICK, [pytest.approx(0.0333, abs=1e-4)]),
    ],
)
def test_devices_with_a_power_limit_rest_before_a_burst(monkeypatch, power_watts, fewest, rests) -> None:
    slept: list[float] = []
    monkeypatch.setattr(timing_.time, "sleep", slept.append)
    device = types.SimpleNamespace(
        spec=dataclasses.replace(CUDA_DEVICE, power_watts=power_watts),
        telemetry=lambda: Telemetry(None, None),
    )
    monkeypatch.setattr(timing_, "bind", lambda *_: types.SimpleNamespace(launches=[None]))
    monkeypatch.setattr(timing_, "rotated_sets", lambda *_: ())
    monkeypatch.setattr(timing_, "launches_per_sample", lambda *_: 1)
    monkeypatch.setattr(timing_, "sampler", lambda *_: lambda number: float(100 + number))
    monkeypatch.setattr(timing_, "check_replays", lambda *_: None)
    kernel = types.SimpleNamespace(artifact=toy_artifact(TOY.make(16, 1)))
    found = timing_.measure(device, kernel, PROBLEM, None, fewest)
    assert found.timing.samples_us[0] == 100.0
    assert slept == rests


def test_compilations_that_failed_fail_again() -> None:
    space = toy_space()
    entries = (Entry((), Outcome.COMPILE_ERROR, "no registers left", 2.0), *space.entries[1:])
    broken = RecordedSpace("x", "toy", space.knobs, space.points, entries, PROBLEM, CUDA_DEVICE)
    compiled = ReplayBuilder(broken).submit("toy", space.index.config(0), PROBLEM, CUDA_DEVICE).result()
    assert (compiled.artifact, compiled.outcome) == (None, Outcome.COMPILE_ERROR)
    assert (compiled.message, compiled.seconds) == ("no registers left", 2.0)


def test_the_vendor_of_a_race_is_the_optimum() -> None:
    space = toy_space(0.05)
    bench, builder = ReplayBench(space, 0), ReplayBuilder(space)
    artifact = builder.submit("toy", space.best(1)[0], PROBLEM, CUDA_DEVICE).result().artifact
    assert artifact is not None
    first = bench.race([artifact], PROBLEM, RaceRules(32, 0), 1.0)
    assert median(first.samples_us[1]) == pytest.approx(space.optimum_us, rel=0.05)
    assert first.samples_us[0] != first.samples_us[1]
    assert bench.race([artifact], PROBLEM, RaceRules(32, 0), 1.0) == first
    assert bench.race([artifact], PROBLEM, RaceRules(32, 1), 1.0) != first


def test_a_recorded_family_knows_what_was_recorded() -> None:
    space = toy_space()
    family = RecordedFamily(space)
    assert family.why_invalid(TOY.make(32, 2), PROBLEM, CUDA_DEVICE) is None
    assert "not recorded" in str(family.why_invalid(TOY.make(128, 8), PROBLEM, CUDA_DEVICE))
    assert "was recorded for" in str(family.why_invalid(TOY.make(32, 2), PROBLEM, DEVICE))
    assert len(list(valid_points(family, PROBLEM, CUDA_DEVICE))) == len(space) == 621
    assert family.heuristic_configs(PROBLEM, CUDA_DEVICE) == []  # the toy is no family of ours


def test_heuristic_configs_of_a_family_of_ours_are_tried_first() -> None:
    problem = GemmProblem(256, 256, 256, DType.FLOAT32, Layout.NN)
    heuristic = HOST.heuristic_configs(problem, DEVICE)
    covered = {name: sorted({str(config[name]) for config in heuristic[:2]}) for name in heuristic[0]}
    family = narrowed(HOST, covered)
    configs = [family.at(point) for point in valid_points(family, problem, DEVICE)]
    rows = [[config[knob.name] for knob in family.knobs] for config in configs]
    knobs = tuple(Knob(knob.name, knob.values, "") for knob in family.knobs)
    points, entries = assemble(knobs, rows, [Entry((1.0 + i,)) for i in range(len(rows))])
    space = RecordedSpace("host", "host", knobs, points, entries, problem, DEVICE)
    inside = [config for config in heuristic if config in configs]
    assert RecordedFamily(space).heuristic_configs(problem, DEVICE) == inside
    assert set(heuristic[:2]) <= set(inside) != set(configs)


def test_a_space_recorded_with_a_knob_that_was_deleted_keeps_its_heuristic_configs() -> None:
    problem = GemmProblem(256, 256, 256, DType.FLOAT32, Layout.NN)
    first = HOST.heuristic_configs(problem, DEVICE)[0]
    deleted = Knob("deleted", (0, 1), "")
    knobs = (deleted, *(Knob(name, (value,), "") for name, value in first.knobs))
    rows = [[value, *(value for _, value in first.knobs)] for value in (0, 1)]
    points, entries = assemble(knobs, rows, [Entry((2.0,)), Entry((1.0,))])
    space = RecordedSpace("host", "host", knobs, points, entries, problem, DEVICE)
    found = RecordedFamily(space).heuristic_configs(problem, DEVICE)
    assert [dict(config.knobs) for config in found] == [dict(first.knobs) | {"deleted": at} for at in (0, 1)]


def test_many_runs_have_seeds_of_their_own_that_follow_from_one() -> None:
    plan = ReplayPlan(Sampler.STAGED, runs=4, budget=12, seed=3)
    assert len({spec.seed for spec in plan.specs()}) == 4
    assert plan.specs() == plan.specs()
    assert plan.specs()[:2] == dataclasses.replace(plan, runs=2).specs()
    heard: list[RunResult] = []
    results = replay(toy_space(0.02), plan, heard.append)
    assert heard == results
    assert len({result.found for result in results}) == 4


def made(found: tuple[float, ...], winner: float | None, name: str = "a") -> RunResult:
    return RunResult(found, winner, name, 12, 10, 1, 0.024, 3.0, 0.25)


def test_a_summary_pinned() -> None:
    """Two runs: .8 and 1 at the end, the second one with two trials only, whose last counts on."""
    summary = summarize([made((0.5, 0.6, 0.8), 0.8, "a"), made((0.9, 1.0), 1.0, "b")], 3)
    (point,) = summary.checkpoints
    assert (point.trials, point.fraction.value, point.near.value) == (3, pytest.approx(0.9), 0.5)
    assert (point.fraction.low, point.fraction.high) == (pytest.approx(0.8), pytest.approx(1.0))
    assert summary.curve == pytest.approx((0.7, 0.8, 0.9))
    assert summary.regret.value == pytest.approx(0.125)  # 1 / 0.8 - 1 = 0.25, and 0
    assert (summary.wasted, summary.repeated) == (2.0, 1.0)
    assert summary.sampler_ms == pytest.approx(2.0)  # 48 ms for 24 asks
    assert (summary.winners, summary.agreement, summary.lost) == (2, 0.5, 0)


def test_the_bootstrap_covers_the_mean() -> None:
    """The 95 % interval contains the true mean in about 95 % of 200 samples of 40."""
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(200):
        low, high = bootstrap(rng.normal(1.0, 0.3, (40, 1)))
        held += bool(low[0] <= 1.0 <= high[0])
    assert 0.88 <= held / 200 <= 0.99


def test_a_run_without_a_winner_is_counted_apart() -> None:
    summary = summarize([made((0.5,), 0.8), made((), None, ""), made((), None, "")], 1)
    assert (summary.lost, summary.winners, summary.agreement) == (2, 1, pytest.approx(1 / 3))
    assert math.isclose(summary.regret.value, 0.25)
