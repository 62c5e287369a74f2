"""What a job does with configs that broke a device: it tries none again and tells of those that it finds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from toy_family import TOY
from tune_lab import Lab, config_of

from kernels.registry import FAMILIES
from tilewright.artifact import Artifact
from tilewright.schema.config import Config
from tilewright.schema.trial import Outcome, Provenance
from tuner.workers.process import WorkerDied


@pytest.fixture(autouse=True)
def _toy_is_a_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "toy", TOY)


def test_a_quarantined_config_is_proposed_and_not_run() -> None:
    free = Lab()
    best = free.tune(max_trials=20)
    assert best is not None
    lab = Lab()
    lab.recorder.quarantined = {best.config: "quarantined: it hung"}
    other = lab.tune(max_trials=20)
    assert other is not None
    assert other.config != best.config
    assert str(best.config) not in lab.bench.tried
    [refused] = [trial for trial in lab.recorder.kept if trial.config == best.config]
    assert (refused.outcome, refused.message) == (Outcome.INVALID, "quarantined: it hung")
    assert len(lab.bench.tried) == 20


def test_a_job_with_refused_configs_resumes_as_it_was() -> None:
    free = Lab()
    free.tune(max_trials=20)
    broken = {trial.config: "quarantined: it hung" for trial in free.recorder.kept[3:9]}
    whole = Lab()
    whole.recorder.quarantined = broken
    best = whole.tune(max_trials=20)
    resumed = Lab(whole.recorder.kept[:12])
    resumed.recorder.quarantined = broken
    assert resumed.tune(max_trials=20) == best
    assert resumed.recorder.kept == whole.recorder.kept


def test_what_another_device_broke_meanwhile_is_in_no_race() -> None:
    """It was measured here before."""
    free = Lab()
    best = free.tune(max_trials=20)
    assert best is not None
    lab = Lab()

    def break_elsewhere(_trial: Any) -> None:
        if len(lab.recorder.kept) == 20:
            lab.recorder.quarantined = {best.config: "quarantined: it hung elsewhere"}

    lab.recorder.on_trial = break_elsewhere
    other = lab.tune(max_trials=20)
    assert other is not None
    assert other.config != best.config
    assert not any(str(best.config) in candidates for candidates in lab.bench.races)


@pytest.mark.parametrize("own_fault", [True, False])
def test_who_breaks_the_race_by_its_own_fault_is_quarantined(own_fault: bool) -> None:
    lab = Lab()
    lab.bench.cost = lambda text: 100.0 + len(text) / 100
    broken: list[str] = []

    def crash(artifacts: list[Artifact]) -> None:
        texts = [artifact.binary.decode() for artifact in artifacts]
        broken.extend(texts[:1] if not broken else [])
        if broken[0] in texts:
            raise WorkerDied("crashed in the race", "SIGSEGV")

    trial = lab.bench.trial

    def told(*given: Any) -> Any:
        result = trial(*given)
        return dataclasses.replace(result, own_fault=own_fault if result.timing is None else None)

    lab.bench.on_race = crash  # type: ignore[assignment]
    lab.bench.on_trial = lambda text: Outcome.LAUNCH_ERROR if text in broken else Outcome.OK
    lab.bench.trial = told  # type: ignore[method-assign]
    assert lab.tune(max_trials=20) is not None
    assert list(lab.recorder.quarantined) == ([config_of(broken[0])] if own_fault else [])


@pytest.mark.parametrize("broke_today", [True, False])
def test_a_resumed_job_leaves_out_what_breaks_a_device_with_the_driver_of_today(broke_today: bool) -> None:
    whole = Lab()
    best = whole.tune(max_trials=20)
    assert best is not None
    lab = Lab(
        [
            dataclasses.replace(one, provenance=dataclasses.replace(one.provenance, driver="old driver"))
            for one in whole.recorder.kept
            if one.provenance
        ]
    )
    driver = lab.bench.driver if broke_today else "old driver"

    def why_quarantined(config: Config, today: Provenance) -> str | None:
        return "it hung" if (config, today.driver) == (best.config, driver) else None

    lab.recorder.why_quarantined = why_quarantined  # type: ignore[method-assign]
    other = lab.tune(max_trials=20)
    assert other is not None
    assert (other.config == best.config) is not broke_today
    assert any(str(best.config) in candidates for candidates in lab.bench.races) is not broke_today
