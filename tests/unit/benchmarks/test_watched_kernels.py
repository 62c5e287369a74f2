"""Kernels under compute-sanitizer and ncu: what runs, what the tools say, and what is kept of it."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from device_samples import HOPPER
from host_samples import config_of

from benchmarks.common.results import RESULTS, SharedRows
from benchmarks.lab import launched, sanitize
from benchmarks.lab import mma_counters as counters
from kernels.compiler.build import build
from kernels.host.family import HOST
from kernels.reference import REFERENCE_KERNELS
from kernels.registry import FAMILIES
from tilewright import GemmProblem
from tuner.workers.device_worker import open_device

SMALL = GemmProblem(24, 32, 16, dtype="float32", layout="nn")
# Says what the tools say, and finds something in the kernels that are called bad.
TOOL = """#!/bin/sh
echo "========= COMPUTE-SANITIZER"
tool=$2; shift 4
"$@" > "$FOLDER/said"; code=$?
cat "$FOLDER/said"
bad=$(grep -c bad "$FOLDER/said")
[ "$bad" = 0 ] || echo "========= Invalid __global__ read of size 4 bytes"
if [ $tool = racecheck ]; then
    echo "========= RACECHECK SUMMARY: $bad hazards displayed (0 errors, $bad warnings)"
else
    echo "========= ERROR SUMMARY: $bad errors"
fi
exit $code
"""
OF_PEAK = "cycles_active.avg.pct_of_peak_sustained_active"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op"
NCU = f"""==PROF== Connected to process 7
launched one
launched two
"ID","Kernel Name","gpu__time_duration.sum",\
"sm__pipe_tensor_op_hmma_{OF_PEAK}","sm__pipe_tensor_op_imma_{OF_PEAK}",\
"{CONFLICTS}_ld.sum","{CONFLICTS}_st.sum","smsp__inst_executed.sum"
"","","ns","%","%","","","inst"
"0","mma_sync","319,822","71.5","0","1,024","16","123456"
"1","mma_sync","300000","80","0","0","0","100000"
==WARNING== Not all kernels were replayed
"""


@pytest.fixture
def cases() -> list[sanitize.Case]:
    names = ("host-1", "host-2-bad", "host-3")
    return [sanitize.Case(name, config_of(threads=1), SMALL) for name in names]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bin" / "compute-sanitizer"
    path.parent.mkdir()
    path.write_text(TOOL)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FOLDER", str(tmp_path))


def test_kernels_are_launched_from_a_folder(tmp_path: Path) -> None:
    device = open_device("host")
    artifact = build(HOST, config_of(threads=1), SMALL, device.spec)
    for name in ("second", "first"):
        launched.write(tmp_path, name, artifact, SMALL)
    assert list(launched.launch_all(tmp_path, device)) == ["first", "second"]
    assert launched.read(tmp_path, "first") == (artifact, SMALL)


@pytest.mark.long
def test_what_is_sanitized() -> None:
    found = list(sanitize.cases(HOPPER))
    assert len({case.name for case in found}) == len(found)
    assert {case.config for case in found} >= {reference.config for reference in REFERENCE_KERNELS}
    for name, family in FAMILIES.items():
        own = [case for case in found if case.name.startswith(f"{name}-")]
        assert len(own) >= 20 if family.device_kind == "cuda" else not own
    for case in found:
        family = FAMILIES[case.config.family]
        assert family.why_invalid(case.config, case.problem, HOPPER) is None


@pytest.mark.long
@pytest.mark.usefixtures("tool")
def test_a_finding_is_told_of_the_kernel_that_has_it(tmp_path: Path, cases: list[sanitize.Case]) -> None:
    file = SharedRows(tmp_path / "rows.json", ("kernel", "tool"))
    run = sanitize._Run(open_device("host"), "host", sanitize.TOOLS, file, seconds=60.0)
    run.run(cases, processes=1)
    told = {(row["kernel"], row["tool"]): (row["errors"], row["warnings"]) for row in file.rows()}
    bad = {("host-2-bad", "memcheck"): (1, 0), ("host-2-bad", "racecheck"): (0, 1)}
    assert told == {(case.name, tool): (0, 0) for case in cases for tool in sanitize.TOOLS} | bad
    assert all(run.done(case) for case in cases)
    assert not run.done(dataclasses.replace(cases[0], name="host-4"))
    said = sanitize.summary(file.rows()).splitlines()
    assert said[0] == "memcheck: 3 kernels, 1 with findings host-2-bad"
    file.keep(file.rows()[0] | {"errors": None, "said": "was stopped"})
    assert [run.done(case) for case in cases] == [False, True, True], "what was stopped runs again"


def test_a_process_that_ends_early_is_no_clean_one() -> None:
    clean = "launched a\nlaunched b\n========= ERROR SUMMARY: 0 errors\n"
    assert sanitize.finding(clean, 2, 0).clean
    assert sanitize.finding(clean, 3, 0).said == "2 of 3 kernels ran, the process ended with 0"
    assert sanitize.finding("launched a\n", 2, None).errors is None
    assert sanitize.finding("launched a\n", 1, 0).errors is None  # the tool did not run


def test_no_process_starts_after_the_time(tmp_path: Path, cases: list[sanitize.Case]) -> None:
    file = SharedRows(tmp_path / "rows.json", ("kernel", "tool"))
    sanitize._Run(open_device("host"), "host", sanitize.TOOLS, file, seconds=-1.0).run(cases, 1)
    assert not file.rows()


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b"])
def test_other_parts_are_wrong(text: str) -> None:
    with pytest.raises(ValueError, match=r"part is i/n|invalid literal"):
        sanitize.part_of(text)
    assert sanitize.part_of("2/2") == (2, 2)


def test_rows_of_several_processes_are_kept(tmp_path: Path) -> None:
    one, other = (SharedRows(tmp_path / "rows.json", ("m",)) for _ in range(2))
    one.keep({"m": 1, "us": 3.0})
    other.keep({"m": 2, "us": 4.0})
    one.keep({"m": 1, "us": 5.0})
    assert one.rows() == [{"m": 2, "us": 4.0}, {"m": 1, "us": 5.0}]


def test_counters_are_read_from_what_ncu_prints() -> None:
    first, second = map(counters.columns, counters.counters(NCU))
    assert first == {
        "ns": 319822.0, "tensor_pipe_pct": 71.5, "issue_slots_pct": None, "instructions": 123456.0,
        "bank_conflicts": 1040.0,
    }  # fmt: skip
    assert second["tensor_pipe_pct"] == 80.0
    assert counters.counters("==ERROR== no permission\n") == []
    row = {"problem": "p", "release": "old", **first}
    assert counters.table([row]).splitlines()[2] == "| p | old | 319822.0 | 71.5 | None | 123456.0 | 1040.0 |"


def test_kernels_of_recorded_rows_are_compiled(tmp_path: Path) -> None:
    [path] = RESULTS.glob("mma-sm_90-132sm-150gb-*.json")
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    name = counters.PROBLEMS[0]
    said = list(counters.write(tmp_path, rows, [name, "1x1x1-nt-float16-float32"]))
    assert said == [
        f"{name}: written",
        "1x1x1-nt-float16-float32: no row; measure it with tilewright bench mma",
    ]
    [found] = launched.names(tmp_path)
    artifact, problem = launched.read(tmp_path, found)
    assert (problem.m, str(problem.layout), str(problem.accumulate)) == (4096, "nt", "float32")
    assert artifact.plan.entry == "mma_sync"
    assert {counters.name_of(row) for row in rows} >= set(counters.PROBLEMS)
