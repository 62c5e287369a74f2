"""The tuning loop: budgets, failures, resumption, cancellation, and the seconds it reports."""

import dataclasses
import logging
import re
import threading
import time
from typing import Any

import pytest
from toy_family import CUDA_DEVICE, DEVICE, PROBLEM, TOY, ToyFamily
from tune_lab import Lab

from kernels.registry import FAMILIES
from tilewright.errors import InvalidProblem
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import Sampler, TuneRequest
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome
from tuner.job.progress import PHASES
from tuner.search.search import DEPTH


@pytest.fixture(autouse=True)
def _toy_is_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)


def test_a_job_spends_its_budget_and_records_each_trial() -> None:
    lab = Lab()
    best = lab.tune(max_trials=30)
    trials = lab.recorder.kept
    assert [trial.number for trial in trials] == list(range(30))
    assert {trial.outcome for trial in trials} == {Outcome.OK, Outcome.PRUNED}
    assert best is not None
    assert lab.recorder.best == best
    first, artifact = trials[0], lab.recorder.artifacts[0]
    assert artifact is not None
    assert first.origin == "initial"
    assert (first.artifact, first.resources) == (artifact.digest, artifact.resources)
    assert (first.compile_s, first.check_s, first.measure_s) == (0.5, 0.25, 0.125)
    assert first.provenance is not None
    assert (first.provenance.source_digest, first.provenance.method) == ("source", "lab")
    assert first.provenance.device_class == lab.bench.spec.device_class.id


@pytest.mark.parametrize("repeatable", [True, False])
def test_trials_and_winner_tell_whether_the_kernel_was_seen_to_repeat(repeatable: bool) -> None:
    lab = Lab()
    ordered = lab.bench.trial
    lab.bench.trial = lambda *given: dataclasses.replace(ordered(*given), repeatable=repeatable)  # type: ignore[method-assign]
    best = lab.tune(max_trials=5)
    assert best is not None
    assert best.repeatable is repeatable
    assert {trial.repeatable for trial in lab.recorder.kept} == {repeatable}


def test_progress_tells_each_phase_and_adds_up() -> None:
    lab = Lab()
    best = lab.tune(max_trials=20)
    steps = lab.recorder.progress
    assert list(dict.fromkeys(step.phase for step in steps)) == ["enumerate", "search", "race", "done"]
    last = steps[-1]
    assert (last.measured, last.planned, last.valid_configs, last.failed) == (20, 20, 621, 0)
    assert (last.compile_s, last.check_s, last.measure_s) == (10.0, 5.0, 2.5)
    assert best is not None
    searched = [step for step in steps if step.phase == "search"]
    assert [step.measured for step in searched] == list(range(21))
    assert [step.eta_s is None for step in searched] == [True] + [False] * 20
    assert searched[-1].eta_s == 0.0


@pytest.mark.parametrize("outcome", [Outcome.LAUNCH_ERROR, Outcome.WRONG_RESULT, Outcome.TIMEOUT])
def test_failed_trials_are_kept_and_cost_no_budget(outcome: Outcome) -> None:
    lab = Lab()
    lab.bench.on_trial = lambda text: outcome if "order=rows" in text else Outcome.OK
    assert lab.tune(max_trials=20) is not None
    failed = [trial for trial in lab.recorder.kept if trial.outcome is outcome]
    assert failed
    assert all(trial.message == f"{outcome} on purpose" and trial.timing is None for trial in failed)
    assert all(trial.provenance and trial.provenance.method == "" for trial in failed)
    assert len(lab.recorder.kept) - len(failed) == 20
    assert lab.recorder.progress[-1].failed == len(failed)


def test_a_compile_error_is_a_trial_without_artifact() -> None:
    lab = Lab()
    lab.builder.fails = lambda config: config["order"] == "rows"
    assert lab.tune(max_trials=10) is not None
    first = lab.recorder.kept[0]
    assert (first.outcome, first.message) == (Outcome.COMPILE_ERROR, "does not compile")
    assert (first.artifact, first.provenance, lab.recorder.artifacts[0]) == (None, None, None)
    assert not any("order=rows" in text for text in lab.bench.tried)


def test_endless_failures_end_after_four_asks_a_trial() -> None:
    lab = Lab()
    lab.bench.on_trial = lambda _text: Outcome.WRONG_RESULT
    assert lab.tune(max_trials=15) is None
    assert len(lab.recorder.kept) == 60
    assert lab.bench.races == []
    assert lab.recorder.best is None
    assert lab.recorder.progress[-1].phase == "done"


def test_the_same_seed_gives_the_same_trials_and_winner() -> None:
    one, other = Lab(), Lab()
    assert one.tune(seed=5) == other.tune(seed=5)
    assert one.recorder.kept == other.recorder.kept
    different = Lab()
    different.tune(seed=6)
    assert different.recorder.kept != one.recorder.kept


@pytest.mark.parametrize("spec", [DEVICE, CUDA_DEVICE], ids=["host", "cuda"])
@pytest.mark.parametrize("done", [1, 5, 18, 30])
def test_a_resumed_job_measures_nothing_twice_and_ends_the_same(spec: DeviceSpec, done: int) -> None:
    whole = Lab(spec=spec)
    best = whole.tune(max_trials=30)
    resumed = Lab(whole.recorder.kept[:done], spec)
    assert resumed.tune(max_trials=30) == best
    assert resumed.recorder.kept == whole.recorder.kept
    assert resumed.bench.tried == whole.bench.tried[done:]


@pytest.mark.parametrize("done", [1, 7, 30])
def test_the_progress_of_a_resumed_job_never_falls_behind_what_was_recorded(done: int) -> None:
    whole = Lab()
    whole.tune(max_trials=30)
    resumed = Lab(whole.recorder.kept[:done])
    resumed.tune(max_trials=30)
    counts = [progress.measured for progress in resumed.recorder.progress]
    assert counts == sorted(counts)
    assert counts[0] == done


def test_seconds_of_a_resumed_job_are_those_of_this_run() -> None:
    whole = Lab()
    whole.tune(max_trials=20)
    resumed = Lab(whole.recorder.kept[:15])
    resumed.tune(max_trials=20)
    last = resumed.recorder.progress[-1]
    assert (last.measured, last.compile_s, last.check_s) == (20, 2.5, 1.25)


@pytest.mark.parametrize("after", [0, 7])
def test_a_cancelled_job_keeps_its_trials_and_names_no_winner(after: int) -> None:
    lab = Lab()
    lab.recorder.on_trial = lambda trial: lab.cancelled.set() if trial.number == after else None
    assert lab.tune(max_trials=30) is None
    assert len(lab.recorder.kept) == after + 1
    assert (lab.bench.races, lab.recorder.best) == ([], None)
    assert lab.recorder.progress[-1].phase == "search"


def test_cancelling_does_not_wait_for_compilers_and_drops_their_queue() -> None:
    lab = Lab()
    lab.builder.at_once = False
    threading.Timer(0.3, lab.cancelled.set).start()
    start = time.monotonic()
    assert lab.tune(max_trials=30) is None
    assert time.monotonic() - start < 5.0
    assert len(lab.builder.futures) == DEPTH
    assert all(future.cancelled() for future in lab.builder.futures)


def test_a_job_cancelled_in_the_race_names_no_winner() -> None:
    lab = Lab()
    lab.bench.on_race = lambda _artifacts: lab.cancelled.set()
    assert lab.tune(max_trials=20) is None
    assert len(lab.bench.races) == 1
    assert lab.recorder.best is None


def test_time_runs_out_but_the_race_is_run() -> None:
    lab = Lab()
    lab.recorder.on_trial = lambda _trial: time.sleep(0.05)
    assert lab.tune(max_trials=600, max_seconds=1.0) is not None
    assert 1 <= len(lab.recorder.kept) < 100


def test_even_the_shortest_time_allows_one_trial() -> None:
    lab = Lab()
    assert lab.tune(max_trials=600, max_seconds=1e-9) is not None
    assert len(lab.recorder.kept) == 1


@pytest.mark.parametrize(
    ("options", "outcome", "reason"),
    [
        ({"max_trials": 12}, Outcome.OK, "budget spent"),
        ({"max_trials": 700}, Outcome.OK, "every valid config was tried"),
        ({"max_trials": 12}, Outcome.WRONG_RESULT, "too many configs failed"),
        ({"max_trials": 600, "max_seconds": 1e-9}, Outcome.OK, "time is up"),
        ({"max_trials": 600, "min_gain_per_s": 0.5}, Outcome.OK, "none of the last 20 trials is faster"),
    ],
)
def test_a_job_says_why_its_search_ended(options: dict[str, Any], outcome: Outcome, reason: str) -> None:
    lab = Lab()
    lab.bench.on_trial = lambda _text: outcome
    lab.tune(**options)
    last = lab.recorder.progress[-1]
    assert last.stopped is not None
    assert last.stopped.startswith(reason)
    assert lab.recorder.progress[2].stopped is None


@pytest.mark.parametrize("sampler", Sampler)
def test_each_policy_tunes_and_resumes(sampler: Sampler) -> None:
    whole = Lab()
    best = whole.tune(max_trials=30, sampler=sampler)
    assert best is not None
    resumed = Lab(whole.recorder.kept[:17])
    assert resumed.tune(max_trials=30, sampler=sampler) == best
    assert resumed.recorder.kept == whole.recorder.kept


def test_the_seconds_of_a_job_add_up_to_its_wall_clock(caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab()
    lab.recorder.on_trial = lambda _trial: time.sleep(0.01)
    with caplog.at_level(logging.INFO, "tilewright.job"):
        lab.tune(max_trials=10)
    told = re.search(r"budget spent; (.*) = ([0-9.]+) s", caplog.text)
    assert told is not None
    parts = dict(part.split(" ") for part in told[1].split(" + "))
    assert list(parts) == [*PHASES, "other"]
    assert sum(map(float, parts.values())) == pytest.approx(float(told[2]), abs=0.04)
    assert float(parts["search"]) > 0.0


def test_waiting_for_a_compiler_counts_as_idle() -> None:
    lab = Lab(spec=CUDA_DEVICE)
    lab.builder.at_once = False
    compiler = threading.Thread(target=_compile_slowly, args=(lab, 6, 0.1))
    compiler.start()
    lab.tune(max_trials=6)
    compiler.join()
    last = [step for step in lab.recorder.progress if step.phase == "search"][-1]
    assert 0.3 < last.idle_s <= last.elapsed_s


def _compile_slowly(lab: Lab, count: int, seconds: float) -> None:
    for index in range(count):
        while len(lab.builder.futures) <= index:
            time.sleep(0.001)
        time.sleep(seconds)
        lab.builder.finish(lab.builder.futures[index], lab.builder.submitted[index])


def test_a_gpu_measures_while_later_configs_compile() -> None:
    lab = Lab(spec=CUDA_DEVICE)
    ahead = []
    lab.recorder.on_trial = lambda trial: ahead.append(len(lab.builder.submitted) - trial.number)
    lab.tune(max_trials=30)
    # The last of the 30 is submitted before the one that is DEPTH - 1 ahead of it is recorded.
    full = 30 - DEPTH + 1
    assert ahead[:full] == [DEPTH] * full


def test_first_trials_and_compilations_are_of_the_likely_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "two", ToyFamily("two"))
    monkeypatch.setattr("tuner.job.first_configs.prior", lambda *_where: {"toy": 1 / 8, "two": 1.0})
    lab = Lab(spec=CUDA_DEVICE)
    request = TuneRequest(PROBLEM, families=("toy", "two"), max_trials=10)
    lab.run(request)
    assert lab.builder.submitted[:2] == ToyFamily("two").heuristic_configs(PROBLEM, CUDA_DEVICE)[:2]
    assert [trial.config.family for trial in lab.recorder.kept].count("toy") == 1


def test_families_that_never_win_are_searched_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "two", ToyFamily("two"))

    def prior(_problem: GemmProblem, _device: DeviceSpec, named: set[str]) -> dict[str, float]:
        return {name: 1.0 if name in {"toy", *named} else 0.0 for name in FAMILIES}

    monkeypatch.setattr("tuner.job.first_configs.prior", prior)
    for families, searched in (((), {"toy"}), (("toy", "two"), {"toy", "two"})):
        lab = Lab(spec=CUDA_DEVICE)
        request = TuneRequest(PROBLEM, families=families, max_trials=10)
        lab.run(request)
        assert {trial.config.family for trial in lab.recorder.kept} == searched


class _ManyFirst(ToyFamily):
    """One with twelve heuristic configs."""

    def heuristic_configs(self, problem: Any, device: Any) -> list[Config]:
        del problem, device
        return [self.make(tile, stages) for tile in (16, 32, 48, 64) for stages in (2, 3, 4)]


@pytest.mark.parametrize(("processes", "begun"), [(1, DEPTH), (7, 6), (64, 10)])
def test_each_compiler_begins_with_a_config_that_is_asked_for_first(
    processes: int, begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("toy", "two"):
        monkeypatch.setitem(FAMILIES, name, _ManyFirst(name))
    monkeypatch.setattr("tuner.job.first_configs.prior", lambda *_where: {"toy": 1 / 4, "two": 1.0})
    lab = Lab(spec=CUDA_DEVICE)
    lab.builder.processes = processes
    trial, submitted = lab.bench.trial, list[int]()

    def noted(*given: Any) -> Any:
        submitted.append(len(lab.builder.submitted))
        return trial(*given)

    lab.bench.trial = noted  # type: ignore[method-assign]
    request = TuneRequest(PROBLEM, families=("toy", "two"), max_trials=10)
    lab.run(request)
    assert submitted[0] == begun
    asked = [one.config for one in sorted(lab.recorder.kept, key=lambda one: one.number)]
    assert lab.builder.submitted[:DEPTH] == asked[:DEPTH]
    assert [config.family for config in asked[:DEPTH]] == ["two", "two", "two", "toy"]


def test_the_host_compiles_a_batch_before_it_measures() -> None:
    lab = Lab()
    open_compiles = []

    def running(_text: str) -> Outcome:
        open_compiles.append(sum(not future.done() for future in lab.builder.futures))
        return Outcome.OK

    lab.builder.at_once = False
    lab.bench.on_trial = running
    compiler = threading.Thread(target=_compile_slowly, args=(lab, 8, 0.01))
    compiler.start()
    lab.tune(max_trials=8)
    compiler.join()
    assert open_compiles == [0] * 8


def test_initial_configs_of_the_caller_come_first() -> None:
    lab, given = Lab(), TOY.make(96, 2, "columns", 2, 4)
    request = TuneRequest(PROBLEM, families=("toy",), max_trials=6)
    lab.run(request, lambda _: [given])
    assert lab.recorder.kept[0].config == given


@pytest.mark.parametrize(
    ("families", "problem", "reason"),
    [
        (("nonsense",), PROBLEM, "there is no family 'nonsense'; choose among"),
        (("toy",), GemmProblem(255, 256, 256), "toy does not support .*odd m"),
    ],
)
def test_what_cannot_be_tuned_is_said(families: tuple[str, ...], problem: GemmProblem, reason: str) -> None:
    lab = Lab()
    request = TuneRequest(problem, families=families)
    with pytest.raises(InvalidProblem, match=reason):
        lab.run(request)


def test_a_programming_error_is_not_a_trial() -> None:
    lab = Lab()

    def broken(_text: str) -> Outcome:
        raise RuntimeError("a bug")

    lab.bench.on_trial = broken
    with pytest.raises(RuntimeError, match="a bug"):
        lab.tune()
    assert lab.recorder.kept == []
    assert all(future.done() for future in lab.builder.futures)


@pytest.mark.parametrize("spec", [DEVICE, CUDA_DEVICE])
@pytest.mark.parametrize("lost", [(7, 9), (4, 5, 6, 7, 8, 9), (16,), (0, 1)])
def test_a_job_with_gaps_resumes_with_what_was_recorded(lost: tuple[int, ...], spec: DeviceSpec) -> None:
    """Devices that help end their trials in any order, so that an interrupted job lacks some numbers."""
    whole = Lab(spec=spec)
    whole.tune(max_trials=30)
    kept = [one for one in whole.recorder.kept[:17] if one.number not in lost]
    kept = kept[:3] + kept[3:][::-1]
    resumed = Lab(kept, spec=spec)
    resumed.tune(max_trials=30)
    trials = resumed.recorder.kept
    assert trials[: len(kept)] == kept
    assert len(resumed.bench.tried) == 30 - len(kept), "none of them again"
    assert sorted(one.number for one in trials) == list(range(30))
    assert len({one.config for one in trials}) == 30
    last = resumed.recorder.progress[-1]
    assert (last.measured, last.stopped) == (30, "budget spent")


@pytest.mark.parametrize("spec", [DEVICE, CUDA_DEVICE])
@pytest.mark.parametrize(("budget", "wrong"), [(24, 0), (26, 0), (26, 1), (26, 5), (26, 9), (36, 3)])
def test_a_job_with_gaps_measures_no_more_than_its_budget(budget: int, wrong: int, spec: DeviceSpec) -> None:
    whole = Lab(spec=spec)
    whole.tune(max_trials=30)
    kept = [one for one in whole.recorder.kept if not 5 <= one.number <= 10]
    resumed = Lab(kept, spec=spec)
    resumed.bench.on_trial = lambda _text: (
        Outcome.WRONG_RESULT if len(resumed.recorder.kept) < len(kept) + wrong else Outcome.OK
    )
    resumed.tune(max_trials=budget)
    trials = resumed.recorder.kept
    assert len(trials) == budget + wrong * (budget > 24)
    assert len({one.number for one in trials}) == len({one.config for one in trials}) == len(trials)
    last = resumed.recorder.progress[-1]
    assert (last.measured, last.stopped) == (budget, "budget spent")
