"""Figures in README.md and docs/ are those of the recorded results, of the settings and of the code."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest

from benchmarks.service import fleet_load
from service.engine import device_queue
from service.settings import Settings
from tilewright.config_sets.options import StartOptions
from tilewright.schema.job import QUICK_TRIALS
from tuner.search import search

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def page(name: str) -> str:
    return " ".join((ROOT / name).read_text().split())


def cells(name: str) -> list[list[str]]:
    lines = [line for line in (ROOT / name).read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


README_ROWS = [row for row in cells("README.md") if row[0].isdigit()]
MODEL_FILE = RESULTS / "model-sm_90-132sm-150gb-700w.json"
MODEL_ROWS = [row for row in json.loads(MODEL_FILE.read_text()) if row["weight"] == "qkv"]


def test_the_readme_has_a_table_of_one_weight() -> None:
    assert len(README_ROWS) == 8
    job = f"{len(MODEL_ROWS)} values of M tuned by one job of {MODEL_ROWS[0]['job_s']:.0f} s"
    assert job in page("README.md")


@pytest.mark.parametrize("row", README_ROWS, ids=lambda row: row[0])
def test_the_readme_has_the_recorded_times_and_ratios(row: list[str]) -> None:
    m, micros, ratio = row
    (found,) = [one for one in MODEL_ROWS if one["m"] == int(m)]
    assert (micros, ratio) == (f"{float(format(found['ours_us'], '.3g')):g}", f"{found['ratio_apart']:.2f}")


def test_the_readme_has_the_mean_and_the_least_of_all_rows() -> None:
    ratios = [one["ratio_apart"] for one in MODEL_ROWS]
    told = page("README.md")
    assert f"| all {len(ratios)}: geometric mean | | {geometric_mean(ratios):.2f} |" in told
    assert f"| all {len(ratios)}: least | | {min(ratios):.2f} |" in told


@pytest.mark.parametrize(("column", "device_class"), [(0, "150gb"), (1, "85gb")])
def test_the_performance_page_has_the_means_and_the_least_of_unseen_shapes(
    column: int, device_class: str
) -> None:
    rows = json.loads((RESULTS / f"unseen-sm_90-132sm-{device_class}-700w-bfloat16.json").read_text())
    table = {row[0]: row[1:] for row in cells("docs/performance.md") if len(row) == 3}
    del table["shapes"], table["---"]
    assert set(table) == {row["group"] for row in rows}
    for name, told in table.items():
        apart, both = zip(
            *((row["ratio_apart"], row["ratio_back_to_back"]) for row in rows if row["group"] == name),
            strict=True,
        )
        assert told[column] == f"{geometric_mean(apart):.3f}, {min(*apart, *both):.3f}", name


@pytest.mark.parametrize("column", [1, 2, 3])
def test_the_performance_page_has_the_lower_mean_and_the_least_of_the_suite(column: int) -> None:
    head, _, *table, least = [row for row in cells("docs/performance.md") if len(row) == 4]
    path = RESULTS / f"suite-v3-sm_90-132sm-85gb-700w-{head[column]}.json"
    ratios = defaultdict[str, list[tuple[float, float]]](list)
    for row in json.loads(path.read_text()):
        ratios[row["group"]].append((row["ratio_apart"], row["ratio_back_to_back"]))
    assert ratios.keys() - {"seed 003"} == {name for name, *_ in table}
    for name, *told in table:
        lower = min(map(geometric_mean, zip(*ratios[name], strict=True)))
        assert told[column - 1] == f"{lower:.3f}", name
    assert least[column] == f"{min(min(pair) for group in ratios.values() for pair in group):.3f}"


def test_the_fleet_page_has_what_several_gpus_brought() -> None:
    def rows(part: str, device_class: str) -> list[dict[str, Any]]:
        file = RESULTS / f"fleet-gpus-{part}-sm_90-132sm-{device_class}-700w.json"
        return list(json.loads(file.read_text())["rows"])

    speeds, ratios, means = list[float](), list[float](), list[float]()
    for device_class in ("85gb", "150gb"):
        jobs = [row for row in rows("jobs", device_class) if row["kind"] == "jobs"]
        speeds += [row["times_as_fast"] for row in jobs[1:]]
        compared = rows("winners", device_class)
        ratios += [abs(row["ratio"] - 1) for row in compared if row["kind"] == "pair"]
        means += [abs(row["geometric_mean"] - 1) for row in compared if row["kind"] == "winners"]
    two, four, other = speeds
    told = f"Two H100s ran 24 quick jobs {two:.2f} times as fast as one, four {four:.2f}, "
    told += f"two H200s {other:.2f}. Single winners differ by up to {100 * max(ratios):.0f} %, "
    told += f"their geometric mean by {100 * max(means):.1f} %."
    assert told in page("docs/fleet.md")


def test_the_fleet_page_has_how_far_gpus_of_one_class_differ() -> None:
    files = (
        RESULTS / "fleet-gpus-neighbours-sm_90-132sm-150gb-700w.json",
        RESULTS.parent / "lab" / "2026-11-27-fleet-again-neighbours.json",
    )
    rows = [row for file in files for row in json.loads(file.read_text())["rows"]]
    logs = [row["correction"] for row in rows if row["kind"] == "anchor" and row["device"] == "all"]
    assert f"Two H200s differ by up to {100 * math.expm1(max(logs)):.1f} %" in page("docs/fleet.md")


def test_the_fleet_page_has_what_faults_cost_and_a_simulation_gave() -> None:
    faults = json.loads((RESULTS / "fleet-faults.json").read_text())["faults"]
    assert not any(row["lost"] or row["doubled"] or row["unfinished"] for row in faults)
    moments = min(row["moments"] for row in faults)
    assert f"at {moments} moments each nothing was lost" in page("docs/fleet.md")
    largest = json.loads((RESULTS / "fleet-scaling.json").read_text())["rows"][-1]
    told = f"Simulated, {largest['devices']} devices are {largest['speedup']:.0f} times as fast"
    assert told in page("docs/fleet.md")


def test_the_fleet_page_has_what_ray_adds_to_a_trial() -> None:
    rows = json.loads((RESULTS / "fleet-overhead-2cores.json").read_text())["rows"]
    last = [row for row in rows if row["kind"] == "overhead" and row["figure"] == "besides_ms_per_trial"][-1]
    assert last["interval_within"]
    assert f"On one host Ray adds up to {last['high']:.1f} ms a trial" in page("docs/fleet.md")


def test_the_settings_page_has_the_defaults() -> None:
    """Numbers and sizes; texts such as "every GPU" describe a default that depends on the machine."""
    checked = 0
    for row in cells("docs/settings.md")[2:]:
        field = Settings.model_fields[row[0].strip("`").removeprefix("TILEWRIGHT_").lower()]
        default = field.get_default(call_default_factory=True, validated_data={})
        number = re.fullmatch(r"([\d.]+)(?: (KiB|MiB|GiB))?", row[1])
        if number:
            assert float(number[1]) * _UNITS.get(number[2], 1) == default, row[0]
            checked += 1
    assert checked > 15


def _recorded(name: str) -> Any:
    return json.loads((RESULTS / f"{name}-sm_90-132sm-150gb-700w.json").read_text())


def test_the_client_page_has_the_recorded_costs() -> None:
    start, us = _recorded("client-startup"), _recorded("client-launch")["calls"]["us"]
    gemm = _recorded("gemm-service")["4096x4096x4096 float16 nt"]
    http, shared, made = (
        gemm[way]["overhead_ms"]
        for way in (
            "safetensors, Client.gemm",
            "shared memory, Client.gemm",
            "arrays made in shared memory, Client.gemm",
        )
    )
    assert [row[1] for row in cells("docs/client.md")[-6:]] == [
        f"{start['cold']['start_ms']:.0f} ms",
        f"{start['warm']['start_ms']:.0f} ms",
        f"{start['warm']['lookup_us']:.1f} us",
        f"{us['tilewright.matmul']['median']:.1f} us; {us['torch.matmul']['median']:.1f} us",
        f"{us['tilewright.matmul(out)']['median']:.1f} us; {us['torch.matmul(out)']['median']:.1f} us",
        f"{http:.0f} ms; {shared:.0f} ms; {made:.1f} ms",
    ]


def test_the_search_page_has_the_part_of_the_initial_configs() -> None:
    assert search.INITIAL_FRACTION == 1 / 3
    told = f"at most {QUICK_TRIALS} trials or a third of its budget if that is more"
    assert told in page("docs/search.md")


def test_make_help_names_every_target_that_people_call() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    described = set(re.findall(r"@echo 'make ([a-z-]+) ", makefile))
    assert described == set(phony[1].split()) - {"help"}


def test_the_fleet_page_has_what_the_measured_costs_make_of_a_fleet() -> None:
    result = json.loads((RESULTS / "fleet-load-2cores.json").read_text())
    table = [row for row in cells("docs/fleet.md") if len(row) == 5][2:]
    assert table == fleet_load.arithmetic(result)
    text = page("docs/fleet.md")
    hosts, gpus, pause = fleet_load.CLIENTS, fleet_load.GPUS, fleet_load.REFRESH_S
    assert f"{hosts:,} client hosts that refresh every {pause:.0f} s, and {gpus:,} GPUs" in text


def test_the_arithmetic_of_the_fleet_takes_the_pauses_of_the_code() -> None:
    assert StartOptions().refresh_s == fleet_load.REFRESH_S
    assert device_queue._POLL_S == fleet_load.IDLE_S
