"""The lab's replays of the default sampler with other constants."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_family import toy_space

from benchmarks.lab import search_variants
from benchmarks.search import sweep
from tuner.replay.formats import write_space
from tuner.search import gp, staged


@pytest.mark.parametrize("variant", ["gp.NOWHERE=1", "samplers.FIRST=1", "gp.correlation=1", "gp.WIDENED=x"])
def test_only_numbers_of_the_sampler_vary(variant: str) -> None:
    with pytest.raises(ValueError, match=r"gp.WIDENED=3|could not convert"):
        search_variants.constants_of(variant)


def test_constants_are_restored_after_an_error() -> None:
    def now() -> tuple[float, int]:
        return gp.WIDENED, staged.FIRST

    def fail() -> None:
        with search_variants.changed({("gp", "WIDENED"): 3.0, ("staged", "FIRST"): 5}):
            assert now() == (3.0, 5)
            raise KeyError

    before = now()
    with pytest.raises(KeyError):
        fail()
    assert now() == before


def test_a_variant_is_compared_run_for_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "SPACES", {})
    write_space(toy_space(0.01), tmp_path / "toys.t4.json.gz")
    out = tmp_path / "variants.json"
    given = [str(tmp_path / "toys.t4.json.gz"), "--runs", "2", "--budget", "25", "--out", str(out)]
    same, other = f"staged.FIRST={staged.FIRST}", "staged.FIRST=20"
    search_variants.main([*given, "--variant", same, "--variant", other])
    found = json.loads(out.read_text())["spaces"]["toy-space"]
    assert found[same] == found[search_variants.UNCHANGED]
    assert found[same]["25"]["more"] == [0.0, 0.0, 0.0]
    assert found[other] != found[same]
