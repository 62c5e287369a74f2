"""The ladder without a GPU: a race of host kernels, rows, table, page."""

from __future__ import annotations

import dataclasses
import json

import pytest
from device_samples import HOPPER
from host_samples import config_of

from benchmarks.common.options import RunOptions
from benchmarks.common.pages import PlotUnavailable, ReportError, include, marks
from benchmarks.ladder import race
from benchmarks.ladder.race import Measurement, climb, races, vendor_name
from benchmarks.ladder.report import (
    MARK,
    PAGE,
    cells,
    conflicts,
    load_rows,
    markdown,
    plot,
    rich_table,
    speedups,
    summary,
    write_report,
)
from benchmarks.ladder.rows import Row, provenance, rows
from benchmarks.ladder.run import LadderRequest, run_ladder
from kernels.host.family import HOST
from kernels.reference import REFERENCE_KERNELS, ReferenceKernel
from kernels.registry import FAMILIES
from tilewright import Config, GemmProblem
from tilewright.artifact import Resources
from tilewright.errors import DeviceUnavailable
from tuner.devices.host import HostDevice
from tuner.measure.stats import median

BEGIN, END = marks(MARK)
KEYS = [
    "kernel", "document", "family", "config", "m", "n", "k", "tflops", "pct_cublas", "document_tflops",
    "document_pct_cublas", "smem_bytes", "registers", "note", "spread_pct",
]  # fmt: skip
SMALL = GemmProblem(48, 64, 40, "float32")
BY_NAME = {reference.name: reference for reference in REFERENCE_KERNELS}


def measurement(name: str, micros: float | None, **changes) -> Measurement:
    reference = BY_NAME.get(name)
    problem = reference.problem if reference else BY_NAME["000-simplified"].problem
    samples = () if micros is None else (micros,) * 3
    return dataclasses.replace(Measurement(name, name[:3], problem, reference, samples_us=samples), **changes)


@pytest.fixture(scope="module")
def measurements() -> list[Measurement]:
    """A real race on the CPU: one kernel that runs, one config that is not legal."""
    good = ReferenceKernel("000-good", config_of(), SMALL, "a kernel", "no reason")
    bad = ReferenceKernel("000-bad", Config.of("host", {"mr": 0}), SMALL, "no kernel", "no reason")
    heard: list[str] = []
    found = climb(HostDevice(), [bad, good], rounds=3, tell=heard.append)
    assert heard == ["48x64x40 float32 nt (document 000, kernels: 2)"]
    return found


def test_a_race_keeps_the_order_and_tells_who_failed(measurements) -> None:
    names = [one.name for one in measurements]
    assert names == ["000-cublas-bad", "000-cublas-bad-best", "000-bad", "000-good"]
    vendor, best, bad, good = measurements
    assert "needs exactly the knobs" in bad.failure
    assert bad.tflops is None
    for one in (vendor, best, good):
        assert len(one.samples_us) == 3
        assert one.tflops is not None
    assert vendor.detail["library"] == "numpy"


def test_the_final_kernel_races_the_tuned_winner_in_several_runs(monkeypatch) -> None:
    good = ReferenceKernel("000-good", config_of(threads=1), SMALL, "a kernel", "no reason")
    later = dataclasses.replace(good, name="001-later")
    monkeypatch.setattr(race, "FINAL", ("000-good",))
    monkeypatch.setattr(race, "_TUNED", {"host": ("host",)})
    monkeypatch.setattr(type(HOST), "heuristic_configs", lambda *_: [config_of(threads=1), config_of(mr=0)])
    heard: list[str] = []
    found = climb(HostDevice(), [good, later], 6, tell=heard.append, runs=2, stop_after=1e-9)
    assert found == []
    assert heard == ["time is up: 000-good and later kernels are left out"]
    found = climb(HostDevice(), [good], 6, runs=2)
    assert [one.name for one in found[2:]] == ["000-good", "000-tuned"]
    for one in found:
        assert (len(one.samples_us), len(one.runs_us)) == (6, 2)
    spread = 100 * abs(found[2].runs_us[0] - found[2].runs_us[1]) / median(found[2].samples_us)
    assert found[2].spread_pct == pytest.approx(spread)
    assert dataclasses.replace(found[2], runs_us=(1.0,)).spread_pct is None
    [said] = summary(rows(found))
    assert said.startswith("000: 000-good ")
    assert said.endswith("(host)")


def test_the_tuned_winner_is_compared_with_kernels_of_its_own_race() -> None:
    """Those of another type have the same extents, and integers are faster."""
    vendor = next(row for row in document_rows() if row.family == "cublaslt")
    kernel = dataclasses.replace(vendor, family="mma_sync", document="002")
    raced = [
        vendor,
        dataclasses.replace(kernel, kernel="002-s8-s32", tflops=500.0),
        vendor,
        dataclasses.replace(kernel, kernel="002-f16-f32", tflops=200.0),
        dataclasses.replace(kernel, kernel="002-tuned", tflops=300.0),
    ]
    said = ["002: 002-f16-f32 200.0, tuned 300.0 TFLOP/s, x 1.500 (mma_sync)"]
    assert list(summary(raced)) == said
    assert list(summary([*raced, vendor, *raced[1:2]])) == said


def test_every_final_kernel_has_a_tuned_rival() -> None:
    for name in race.FINAL:
        reference = BY_NAME[name]
        rivals = [FAMILIES[family] for family in race._TUNED[reference.family]]
        assert any(one.heuristic_configs(reference.problem, HOPPER) for one in rivals)
    assert [name[:3] for name in race.FINAL] == ["000", "001", "002", "003", "004"]


def test_rows_have_the_agreed_keys(measurements) -> None:
    found = [dataclasses.asdict(row) for row in rows(measurements)]
    assert [list(row) for row in found] == [KEYS] * 4
    assert found[3]["config"] == dict(config_of().knobs)
    assert found[3]["pct_cublas"] == pytest.approx(
        100 * measurements[3].tflops / max(measurements[0].tflops, measurements[1].tflops), rel=1e-5
    )  # NOTE: rows keep six digits
    assert found[2]["tflops"] is None
    json.dumps(found, allow_nan=False)


def test_provenance_keeps_samples_and_digests(measurements) -> None:
    facts = provenance(HostDevice(), measurements, rounds=3)
    assert facts["rounds"] == 3
    assert facts["measurements"]["000-good"]["samples_us"] == [
        round(sample, 3) for sample in measurements[3].samples_us
    ]
    assert len(facts["measurements"]["000-good"]["source_digest"]) == 64
    assert facts["measurements"]["000-bad"]["artifact"] is None
    json.dumps(facts, allow_nan=False)


def test_kernels_that_share_a_problem_race_together() -> None:
    groups = list(races(REFERENCE_KERNELS))
    assert sum(len(group) for group in groups) == len(REFERENCE_KERNELS)
    assert [group[0].name for group in groups if group[0].document in ("000", "003", "004")] == [
        "000-wmma-naive", "003-tma-wgmma", "004-1-naive", "004-2-permuted",
    ]  # fmt: skip
    assert len({vendor_name(group[0]) for group in groups}) == len(groups)


def document_rows() -> list[Row]:
    """000: cuBLAS at 400 and 500 us, the first kernel at 2000, the second at 1000 (118.38 GFLOP)."""
    return rows(
        [
            measurement("000-cublas-wmma-naive", 500.0, detail={}),
            measurement("000-cublas-wmma-naive-best", 400.0, detail={}),
            measurement("000-wmma-naive", 2000.0),
            measurement("000-wmma-4-stage", 1000.0),
            measurement("000-mma-m16n8k8", None, failure="does not compile: why"),
            measurement("000-unroll-snake", 1000.0),
        ]
    )


def test_figures_and_notes() -> None:
    plain, best, naive, four, broken, snake = document_rows()
    assert (plain.pct_cublas, best.pct_cublas) == (80.0, 100.0)
    assert (plain.document_tflops, plain.document_pct_cublas, best.document_tflops) == (156.726, 100.0, None)
    assert (naive.tflops, naive.pct_cublas) == (59.19, 20.0)
    assert naive.note == ""  # 20 % here, 16.9 % in the document
    assert four.note.startswith("less of cuBLAS than in the document: cuBLAS of Hopper")  # 40 % against 65 %
    assert broken.note == "does not compile: why"
    # 118.38 TFLOP/s against 141.088.
    assert snake.note.startswith("slower than in the document: ")


def test_a_kernel_that_differs_from_its_document_says_how() -> None:
    [row] = rows([measurement("000-simplified-ldmatrix", 1000.0)])
    assert row.note.startswith("the config of the kernel before, run again: ")
    [slower] = rows([measurement("004-3b-tiling", 12_000.0)])
    assert slower.note.startswith("slower than in the document: ")
    assert "; the document's table says 840 us and 102.3 % of cuBLAS" in slower.note


def test_spills_are_told() -> None:
    class Spilling:
        resources = Resources(registers=255, spill_bytes=8)

    [row] = rows([measurement("000-wmma-naive", 2000.0, artifact=Spilling())])
    assert row.note == "spills 8 bytes a thread"
    assert row.pct_cublas is None


def test_speedup_over_the_kernel_before() -> None:
    found = document_rows()
    assert speedups(found) == [None, None, None, pytest.approx(2.0), None, None]
    other = dataclasses.replace(found[2], document="001")
    assert speedups([found[3], other]) == [None, None]


def test_conflicts_as_stores_and_loads() -> None:
    assert conflicts("000-mma-ldmatrix") == "1 / 1"
    assert conflicts("000-unroll-snake") == "0 / 0"
    assert conflicts("002-f64-f64") == "-"


def test_the_table_has_every_kernel_once() -> None:
    found = document_rows()
    text = markdown(found, "sm_90-test")
    assert "### Document 000 (there on A100 PCIe 80 GB)" in text
    for row in found:
        assert text.count(f"| {row.kernel} |") == 1
    assert "| 000-wmma-4-stage | 118.4 | 40.0 | 102.3 | 65.3 | 2 |" in text
    assert rich_table(found).row_count == len(cells(found)) == 6


def test_the_page_keeps_its_text(tmp_path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    include(page, MARK, "| new |\n")
    assert page.read_text() == f"before\n{BEGIN}\n| new |\n{END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(ReportError, match="lacks the lines"):
        include(page, MARK, "| new |\n")


def test_rows_are_read_back(tmp_path) -> None:
    path = tmp_path / "ladder-x.json"
    path.write_text(json.dumps([dataclasses.asdict(row) for row in document_rows()]))
    assert load_rows(path) == document_rows()
    path.write_text('[{"kernel": 1}]')
    with pytest.raises(ReportError, match="not a list of ladder rows"):
        load_rows(path)


def test_table_and_plot_are_written(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "ladder-x.json"
    written = write_report(path, document_rows())
    assert [file.name for file in written] == ["ladder-x.md", "ladder-x.png", "ladder-x.svg"]
    assert written[1].read_bytes().startswith(b"\x89PNG")
    drawn = written[2].read_bytes()
    plot(document_rows(), path)
    assert written[2].read_bytes() == drawn


def test_without_matplotlib_the_table_is_there(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(PlotUnavailable, match="extra 'bench'"):
        write_report(tmp_path / "ladder-x.json", document_rows())
    assert (tmp_path / "ladder-x.md").read_text().startswith("Measured on `x`")


def test_the_ladder_needs_a_gpu(tmp_path) -> None:
    with pytest.raises(DeviceUnavailable, match="not an NVIDIA GPU"):
        run_ladder(LadderRequest(RunOptions(device="host", out=tmp_path)), print)
    with pytest.raises(ValueError, match="no document 9"):
        run_ladder(LadderRequest(RunOptions(out=tmp_path), "9"), print)
    assert list(tmp_path.iterdir()) == []


def test_the_docs_explain_every_kernel() -> None:
    text = PAGE.read_text()
    assert BEGIN in text
    assert END in text
    missing = [reference.name for reference in REFERENCE_KERNELS if f"`{reference.name}`" not in text]
    assert missing == []
