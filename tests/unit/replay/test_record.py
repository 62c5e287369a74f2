"""Recordings: the journal, what is measured and in which order, what a narrowed family covers."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from toy_family import CUDA_DEVICE, DEVICE, PROBLEM, TINY, TOY, toy_artifact
from tune_lab import config_of

from kernels.registry import FAMILIES
from tilewright.artifact import Artifact
from tilewright.errors import InvalidProblem
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem
from tilewright.schema.trial import Outcome, Timing, TrialResult
from tuner.measure.timing import PRUNE_RATIO
from tuner.replay.device import narrowed
from tuner.replay.record import Counts, Journal, Recording, RecordPlan, head, planned, space_of
from tuner.replay.space import Entry, SpaceError
from tuner.search.points import valid_points
from tuner.workers.builder import Compiled

PLAN = RecordPlan(TOY, PROBLEM, samples=16, slow=2.0)
GOOD = Entry((1.0, 2.0, 3.0), compile_s=0.5, check_s=0.25, registers=32, smem=1024)


class Surroundings:
    """A bench and a builder: configs of tile 16 do not compile, those in column order are wrong."""

    driver = "test driver"

    def __init__(self, spec: DeviceSpec = CUDA_DEVICE) -> None:
        self.spec = spec
        self.submitted: list[Config] = []
        self.tried: list[tuple[Config, float | None]] = []
        self.compiler_ahead: list[int] = []

    def submit(self, _family: str, config: Config, _problem: GemmProblem, _device: DeviceSpec) -> Any:
        self.submitted.append(config)
        done: Future[Compiled] = Future()
        if config["tile"] == 16:
            done.set_result(Compiled(None, Outcome.COMPILE_ERROR, "too small", 0.5))
        else:
            done.set_result(Compiled(toy_artifact(config), Outcome.OK, "", 0.5))
        return done

    def trial(
        self,
        artifact: Artifact,
        problem: GemmProblem,
        incumbent_us: float | None,
        timeout_s: float,
        fewest_samples: int,
    ) -> TrialResult:
        assert (problem, fewest_samples) == (PROBLEM, 16)
        assert timeout_s >= 20.0
        config = config_of(artifact.binary.decode())
        self.tried.append((config, incumbent_us))
        self.compiler_ahead.append(len(self.submitted) - len(self.tried))
        if config["order"] == "columns":
            return TrialResult(outcome=Outcome.WRONG_RESULT, message="wrong", check_s=0.25)
        us = TOY.cost(config)
        pruned = incumbent_us is not None and us > PRUNE_RATIO * incumbent_us
        timing = Timing((us,) * (3 if pruned else fewest_samples), us, us, us, "lab")
        return TrialResult(
            outcome=Outcome.PRUNED if pruned else Outcome.OK, timing=timing, check_s=0.25, measure_s=0.125
        )


def journal(path: Path, lab: Surroundings, plan: RecordPlan = PLAN, resume: bool = False) -> Journal:
    return Journal(path, head(plan, lab), resume)  # type: ignore[arg-type]


def recording(kept: Journal, lab: Surroundings, plan: RecordPlan = PLAN) -> Recording:
    return Recording(plan, lab, lab, kept, planned(plan, lab))  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [CUDA_DEVICE, DEVICE], ids=["cuda", "host"])
def test_every_valid_config_is_measured_once(tmp_path: Path, spec: DeviceSpec) -> None:
    lab = Surroundings(spec)
    kept = journal(tmp_path / "j", lab)
    one = recording(kept, lab)
    counters: list[Counts] = []
    one.run(2, counters.append)
    assert one.complete
    assert len(kept.entries) == len(set(lab.submitted)) == len(lab.submitted) == 621
    assert [counts.done for counts in counters] == list(range(1, 622))
    space = space_of(kept, "toys", TOY.knobs, PROBLEM, spec)
    assert len(space) == 621
    outcomes = {entry.outcome for entry in space.entries}
    assert outcomes == {Outcome.OK, Outcome.COMPILE_ERROR, Outcome.WRONG_RESULT}
    failed = sum(entry.outcome is not Outcome.OK for entry in space.entries)
    assert one.counts == Counts(621, 621, failed, pytest.approx(space.optimum_us), one.counts.idle_s)  # type: ignore[arg-type]
    assert space.provenance["source_digest"] == "source"


def test_a_recorded_trial_may_take_as_long_as_one_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.measure.timing._SLOWEST_FLOPS", {"cuda": PROBLEM.flops / 100.0})
    lab = Surroundings()
    limits: list[float] = []

    def trial(*given: object) -> TrialResult:
        limits.append(given[3])  # type: ignore[arg-type]
        return TrialResult(outcome=Outcome.TIMEOUT)

    monkeypatch.setattr(lab, "trial", trial)
    recording(journal(tmp_path / "j", lab), lab).run(2, lambda _: None)
    assert set(limits) == {120.0}


def test_heuristic_configs_come_first_then_all_others_at_random() -> None:
    lab = Surroundings()
    order = planned(PLAN, lab)  # type: ignore[arg-type]
    assert order[:2] == [TOY.make(32, 2), TOY.make(64, 2)]
    assert order == planned(PLAN, lab)  # type: ignore[arg-type]
    first_knobs = [config["tile"] for config in order[2:40]]
    assert first_knobs != sorted(first_knobs)


def test_compilers_stay_ahead_of_the_device(tmp_path: Path) -> None:
    lab = Surroundings()
    recording(journal(tmp_path / "j", lab), lab).run(2, lambda _counts: None)
    # Four a compiler are under way while one is measured; the last ones run out.
    assert min(lab.compiler_ahead[:300]) >= 7


def test_only_configs_slower_than_asked_are_cut_short(tmp_path: Path) -> None:
    lab = Surroundings()
    kept = journal(tmp_path / "j", lab)
    recording(kept, lab).run(2, lambda _counts: None)
    best = None
    for config, incumbent_us in lab.tried:
        entry = kept.entries[config]
        if best is not None:
            assert incumbent_us == pytest.approx(2.0 * best / PRUNE_RATIO)
        if entry.samples_us:
            assert len(entry.samples_us) == (3 if best and entry.samples_us[0] > 2.0 * best else 16)
            best = min(best or entry.samples_us[0], entry.samples_us[0])


def test_an_interrupted_recording_goes_on_where_it_stood(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    def kill(counts: Counts) -> None:
        if counts.done == 100:
            raise Killed

    lab = Surroundings()
    with pytest.raises(Killed):
        recording(journal(tmp_path / "j", lab), lab).run(2, kill)
    before = (tmp_path / "j").read_text()
    again = Surroundings()
    kept = journal(tmp_path / "j", again, resume=True)
    one = recording(kept, again)
    assert one.counts.done == 100
    one.run(2, lambda _counts: None)
    assert len(kept.entries) == 621
    assert len(again.submitted) == 521
    assert (tmp_path / "j").read_text().startswith(before)


def test_the_time_limit_ends_a_recording_that_can_be_resumed(tmp_path: Path) -> None:
    lab = Surroundings()
    plan = RecordPlan(TOY, PROBLEM, max_seconds=1e-9)
    one = recording(journal(tmp_path / "j", lab), lab, plan)
    one.run(2, lambda _counts: None)
    assert not one.complete
    assert one.counts.done == 0


def test_a_torn_line_costs_one_result(tmp_path: Path) -> None:
    lab, path = Surroundings(), tmp_path / "j"
    kept = journal(path, lab)
    kept.add(TOY.make(32, 2), GOOD)
    kept.add(TOY.make(64, 2), GOOD)
    path.write_text(path.read_text()[:-9])
    again = journal(path, lab, resume=True)
    assert again.entries == {TOY.make(32, 2): GOOD}
    again.add(TOY.make(96, 2), GOOD)
    assert set(journal(path, lab, resume=True).entries) == {TOY.make(32, 2), TOY.make(96, 2)}
    assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize(
    "damage", [b"[]\n", b'{"provenance":1}\n', b"not JSON\n", b"{}\n", b'{"configuration": 3}\n', b"\xff\n"]
)
@pytest.mark.parametrize("begun", [False, True])
def test_a_journal_that_is_none_is_left_as_it_is(tmp_path: Path, damage: bytes, begun: bool) -> None:
    lab, path = Surroundings(), tmp_path / "j"
    if begun:
        journal(path, lab)
    content = (path.read_bytes() if begun else b"") + damage + b"half a line"
    path.write_bytes(content)
    with pytest.raises(SpaceError, match=r"is no journal of a recording, or damaged|records another"):
        journal(path, lab, resume=True)
    assert path.read_bytes() == content


def test_a_file_without_a_whole_first_line_is_no_journal(tmp_path: Path) -> None:
    """An empty one is of a recording that was killed before its first line."""
    path = tmp_path / "j"
    path.write_text("my notes, no newline")
    with pytest.raises(SpaceError, match="its first line is not whole"):
        journal(path, Surroundings(), resume=True)
    assert path.read_text() == "my notes, no newline"
    path.write_text("")
    journal(path, Surroundings(), resume=True)
    assert journal(path, Surroundings(), resume=True).entries == {}


def test_a_journal_is_never_overwritten_by_accident(tmp_path: Path) -> None:
    journal(tmp_path / "j", Surroundings())
    with pytest.raises(SpaceError, match="--resume"):
        journal(tmp_path / "j", Surroundings())


@pytest.mark.parametrize(
    ("plan", "spec", "what"),
    [
        (RecordPlan(TOY, GemmProblem(512, 256, 256)), CUDA_DEVICE, "problem"),
        (RecordPlan(TINY, PROBLEM), CUDA_DEVICE, "family, knobs"),
        (PLAN, DEVICE, "device"),
    ],
)
def test_a_journal_of_something_else_is_refused(
    tmp_path: Path, plan: RecordPlan, spec: DeviceSpec, what: str
) -> None:
    journal(tmp_path / "j", Surroundings())
    with pytest.raises(SpaceError, match=f"records another {what}:"):
        journal(tmp_path / "j", Surroundings(spec), plan, resume=True)


def test_other_sources_or_tools_are_refused(tmp_path: Path) -> None:
    kept = journal(tmp_path / "j", Surroundings())
    kept.set_provenance({"compiler": "cc 1", "driver": "a"})
    again = journal(tmp_path / "j", Surroundings(), resume=True)
    again.set_provenance({"compiler": "cc 1", "driver": "a"})
    with pytest.raises(SpaceError, match="driver changed"):
        again.set_provenance({"compiler": "cc 1", "driver": "b"})


def test_a_narrowed_family_covers_the_given_values_alone() -> None:
    narrow = narrowed(TOY, {"tile": ["64", "32"], "order": ["rows"]})
    configs = [narrow.at(point) for point in valid_points(narrow, PROBLEM, DEVICE)]
    assert {(config["tile"], config["order"]) for config in configs} == {(32, "rows"), (64, "rows")}
    assert narrow.knobs[0].values == (32, 64)
    assert TOY.knobs[0].values == (16, 32, 48, 64, 96, 128)


def test_a_narrowed_family_may_cover_what_is_legal_but_not_searched() -> None:
    narrow = narrowed(TOY, {"stages": ["8"]})
    assert {narrow.at(point)["stages"] for point in valid_points(narrow, PROBLEM, DEVICE)} == {8}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"colour": ["red"]}, "has no knob colour"),
        ({"tile": ["17"]}, "got 17"),
        ({"tile": []}, "got nothing"),
    ],
)
def test_values_that_are_none_are_refused(values: dict[str, list[str]], reason: str) -> None:
    with pytest.raises(InvalidProblem, match=reason):
        narrowed(TOY, values)


def test_a_family_that_does_not_support_the_problem_says_why() -> None:
    plan = RecordPlan(FAMILIES["host"], GemmProblem(64, 64, 64, DType.FLOAT16))
    with pytest.raises(InvalidProblem, match="float"):
        planned(plan, Surroundings(DEVICE))  # type: ignore[arg-type]
    nothing = RecordPlan(narrowed(TOY, {"tile": ["128"], "stages": ["8"]}), PROBLEM)
    with pytest.raises(InvalidProblem, match="no config of toy"):
        planned(nothing, Surroundings())  # type: ignore[arg-type]
