"""benchmarks/lab/race_configs.py: configs from text, combinations, the suite's winners, a race on the
host."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from host_samples import config_of as host_config

from benchmarks.common.recorded_suite import Row
from benchmarks.common.results import write_json
from benchmarks.lab import race_configs
from kernels.registry import FAMILIES
from kernels.wgmma_ws.family import WGMMA_WS
from tilewright import Config, DeviceSpec, GemmProblem
from tilewright.errors import InvalidProblem
from tuner.measure import interleave
from tuner.measure import race as races

H200 = DeviceSpec("cuda", "sm_90", "H200", 132, 140 << 30, 50 << 20, 232448, 233472)
SQUARE = GemmProblem(4096, 4096, 4096)


def test_a_config_is_read_as_it_is_printed() -> None:
    for family in FAMILIES.values():
        for config in family.heuristic_configs(SQUARE, H200)[:3]:
            assert race_configs.config_of(str(config)) == config


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gemm", "a config is family"),
        ("cutlass(tile_m=128)", "with a family of"),
        ("simt(tile_q=1)", "has no knob 'tile_q'"),
        ("simt(tile_m=129)", "tile_m must be one of"),
    ],
)
def test_other_text_is_no_config(text: str, reason: str) -> None:
    with pytest.raises(InvalidProblem, match=reason):
        race_configs.config_of(text)


def test_a_base_is_varied_in_every_combination() -> None:
    base = WGMMA_WS.heuristic_configs(SQUARE, H200)[0]
    found = race_configs.varied(base, ["cta_order=free,gpc", "swizzle_size=2,4,8"])
    assert len(set(found)) == 6
    assert {(one["cta_order"], one["swizzle_size"]) for one in found} == {
        (place, swizzle_size) for place in ("free", "gpc") for swizzle_size in (2, 4, 8)
    }
    assert {one["tile_m"] for one in found} == {base["tile_m"]}
    assert race_configs.varied(base, []) == [base]
    with pytest.raises(InvalidProblem, match="swizzle_size is varied twice"):
        race_configs.varied(base, ["swizzle_size=2", "swizzle_size=4"])
    with pytest.raises(InvalidProblem, match="has no knob 'groups'"):
        race_configs.varied(base, ["groups=2"])


def test_shapes() -> None:
    assert race_configs.problem_of("4096x4096x4096", "float16") == SQUARE
    assert race_configs.problem_of("8x16x32-nn", "bfloat16").layout == "nn"
    assert race_configs.problem_of("16x64x64", "float8_e4m3fn").out == "bfloat16"
    for shape, dtype in (("4096", "float16"), ("8x16x32-xy", "float16"), ("8x16x32-nn", "float8_e4m3fn")):
        with pytest.raises(InvalidProblem):
            race_configs.problem_of(shape, dtype)


def test_the_base_of_a_suite_is_the_row_of_the_problem(tmp_path: Path) -> None:
    """A row of before there was a knob is completed."""
    config = WGMMA_WS.heuristic_configs(SQUARE, H200)[0]
    knobs = {name: value for name, value in config.knobs if name != "cta_order"}
    row = Row(
        4096, 4096, 4096, "float16", "nt", 1.0, 1.0, knobs, "wgmma_ws", "float32", "squares",
        "4096x4096x4096-nt",
    )  # fmt: skip
    path = tmp_path / f"suite-{H200.device_class.id}-float16.json"
    write_json(path, [dataclasses.asdict(row)])
    expected = Config.of("wgmma_ws", knobs | {"cta_order": "free"})
    assert race_configs.winner(SQUARE, H200, tmp_path) == expected
    for problem in (dataclasses.replace(SQUARE, m=2048), GemmProblem(4096, 4096, 4096, "bfloat16")):
        with pytest.raises(InvalidProblem, match="give the config itself"):
            race_configs.winner(problem, H200, tmp_path)


def test_a_race_on_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    """Two valid configs race NumPy, for so many passes; an invalid config is reported."""
    passes: list[int] = []

    def each_round(*given: Any, **named: Any) -> Any:
        passes.append(given[-1])
        return interleave.each_round(*given, **named)

    monkeypatch.setattr(races, "each_round", each_round)
    out = tmp_path / "race.json"
    arguments = [
        "64x48x96-nn", "--dtype", "float32", "--device", "host", "--rounds", "9", "--passes", "4",
        "--out", str(out), "--base", str(host_config()), "--vary", "swizzle=1,2",
        "--config", str(host_config(mr=1000)),
    ]  # fmt: skip
    with pytest.raises(SystemExit):  # no value of the knob
        race_configs.main(arguments)
    assert "mr must be one of" in capsys.readouterr().err
    arguments[-1] = str(host_config(mr=16, nv=4))
    race_configs.main(arguments)
    said = capsys.readouterr().out
    found = json.loads(out.read_text())
    assert passes == [4]
    assert len(found["results"]) == 3
    assert [len(row) for row in found["race"]["samples_us"]] == [9, 9, 9]
    assert found["race"]["vendor_name"] == "numpy"
    assert "--vary swizzle=1,2" in found["command"]
    assert list(found["absent"]) == [arguments[-1]]
    assert said.count(" us  x ") == 3
    assert "host swizzle=1" in said
    assert "no part: host(" in said
    vendor = next(one for one in found["results"] if one["name"] == "numpy")
    assert (vendor["ratio"], vendor["low"], vendor["high"]) == (1.0, 1.0, 1.0)


def test_no_config_that_can_run_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        race_configs.main(
            [
                "64x48x96-nn",
                "--dtype",
                "float32",
                "--device",
                "host",
                "--config",
                str(host_config(mr=16, nv=4)),
            ]
        )
    assert "no config can run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--vary", "swizzle=1"], "give it with --base"),
        (["--rounds", "3"], "--rounds must be at least 8"),
        (["--passes", "0"], "--passes must be at least 1"),
        (["--out", "/nowhere/at/all/race.json"], "there is no folder /nowhere/at/all"),
    ],
    ids=str,
)
def test_what_would_lose_a_race_is_refused_before(arguments, reason, capsys) -> None:
    with pytest.raises(SystemExit):
        race_configs.main(["64x48x96-nn", "--device", "host", *arguments])
    assert reason in capsys.readouterr().err
