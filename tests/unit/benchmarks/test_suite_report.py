"""Rows, means, roofs, tables and pictures of a suite, from figures chosen by hand."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from suite_samples import H200, RUN, row_of

from benchmarks.common.pages import PlotUnavailable, ReportError, include, marks
from benchmarks.common.results import RESULTS
from benchmarks.common.shapes import SEED_GROUP, Shape
from benchmarks.suite.files import Row, load_provenance, load_rows, provenance_path, tuning_path
from benchmarks.suite.means import aligned, means, roof
from benchmarks.suite.report import HEADERS, PAGE, cells, mark, markdown, rich_tables, write_report
from tilewright.schema.problem import DType, Layout

SQUARE = Shape("squares", 4096, 4096, 4096)
ODD = Shape("odd", 4095, 4097, 4093)
SEED = Shape(SEED_GROUP, 4096, 4096, 4096, Layout.NN, DType.FLOAT16)


def suite_rows() -> list[Row]:
    """Ratios 1.21 and 1 among the squares, 4 for the odd one, 2 for the seed's."""
    other = Shape("squares", 8192, 8192, 8192)
    return [
        row_of(SQUARE, 100.0, 121.0),
        row_of(other, 100.0, 100.0, ci_low=0.99, ci_high=1.01),
        row_of(ODD, 100.0, 400.0),
        row_of(SEED, 100.0, 200.0),
        row_of(Shape("squares", 64, 64, 64), 1.0, None),
    ]


def test_means_over_groups() -> None:
    found = {mean.name: mean for mean in means(suite_rows())}
    assert list(found) == ["aligned", "all", "squares", "odd", SEED_GROUP]
    # sqrt(1.21 * 1) = 1.1; cbrt(1.21 * 1 * 4) = cbrt(4.84).
    assert found["aligned"].ratio == found["squares"].ratio == pytest.approx(1.1)
    assert found["all"].ratio == pytest.approx(math.cbrt(4.84))
    assert (found["all"].shapes, found["all"].wins, found["all"].losses) == (3, 2, 0)
    assert found["all"].worst.shape == "8192x8192x8192-nt"
    assert found[SEED_GROUP].ratio == pytest.approx(2.0)


def test_aligned_is_what_tensor_maps_take() -> None:
    assert aligned(row_of(SQUARE, 1.0, 1.0))
    assert aligned(row_of(Shape("odd", 1000, 1000, 1000), 1.0, 1.0))  # 2000 bytes are 125 times 16
    assert not aligned(row_of(ODD, 1.0, 1.0))
    assert not aligned(row_of(Shape("odd", 1024, 50257, 768), 1.0, 1.0))


def test_the_roof_is_the_lower_limit() -> None:
    # 132 SMs * 4096 operations a clock * 1500 MHz = 811.008 TFLOP/s.
    assert roof(row_of(SQUARE, 1.0, 1.0), H200) == pytest.approx(811.008)
    # M = 1: 2 N K operations and about 2 N K bytes, one operation a byte: 4.814 TFLOP/s.
    assert roof(row_of(Shape("decode", 1, 8192, 8192), 1.0, 1.0), H200) == pytest.approx(4.814, rel=1e-3)
    assert roof(row_of(SQUARE, 1.0, 1.0), H200 | {"arch": "x86_64_v4"}) is None
    assert roof(row_of(SQUARE, 1.0, 1.0), H200 | {"memory_gbps": 0}) is None


def test_cells_of_a_row() -> None:
    provenance = RUN | {"shapes": {"4096x4096x4096-nt": {"burst_us": {"ours": 180.0}}}}
    shown = dict(zip(HEADERS, cells(row_of(SQUARE, 208.0, 218.4), provenance), strict=True))
    assert shown["M x N x K"] == "4096 x 4096 x 4096"
    assert shown["x best"] == "1.050"
    assert shown["99 %"] == "1.050 .. 1.050"
    assert (shown["x cuBLAS"], shown["x torch"]) == ("", "2.000")
    assert shown["TFLOP/s"] == "660.8"  # 137.44 GFLOP in 208 us
    assert shown["GB/s"] == "484.0"  # 100.66 MB in 208 us
    assert shown["% roof"] == "81.5"  # 660.8 / 811.0
    assert shown["burst TFLOP/s"] == "763.5"
    assert (shown["MHz"], shown["W"]) == ("1500", "690")
    drifting = cells(row_of(SEED, 200.0, 210.0, state="drifting"), provenance)
    assert drifting[HEADERS.index("MHz")] == "1500 (drifting)"
    assert drifting[1] == "nn f16 sum"


def test_the_page_has_every_shape_once() -> None:
    log = [{"shape": "4096x4096x4096-nt", "trials": 120, "gpu_s": 20.0, "race_s": 5.0, "failure": ""}]
    text = markdown(suite_rows(), RUN | {"date": "2026-11-20T17:00:00+00:00", "shapes": {}}, log)
    assert "Measured on `sm_90-132sm-150gb-700w` (NVIDIA H200, nvidia 580; cupy 14.2" in text
    assert "| aligned | 2 | 1.100 | 1 | 0 | 1.000 at 8192x8192x8192-nt |" in text
    assert text.count("| 4095 x 4097 x 4093 |") == 1
    assert "### Split" not in text
    assert "### Squares (float16)" in text
    assert text.endswith("with 120 trials; tuning and racing took 20 s of the device, 20.0 s a shape.\n")
    shapes, averages = rich_tables(suite_rows(), RUN | {"shapes": {}})
    assert (shapes.row_count, averages.row_count) == (5, 5)


def write_files(folder) -> object:
    path = folder / "suite-x-float16.json"
    path.write_text(json.dumps([dataclasses.asdict(one) for one in suite_rows()]))
    provenance_path(path).write_text(json.dumps(RUN | {"date": "2026-11-20", "shapes": {}}))
    tuning_path(path).write_text("[]")
    return path


def test_tables_and_pictures_are_written(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    path = write_files(tmp_path)
    written = write_report(path)
    assert [file.name.removeprefix("suite-x-float16") for file in written] == [
        ".md", "-ratios.png", "-ratios.svg", "-roofline.png", "-roofline.svg",
    ]  # fmt: skip
    assert written[1].read_bytes().startswith(b"\x89PNG")
    assert "4095x4097x4093-nt" in written[2].read_text()
    drawn = written[4].read_bytes()
    write_report(path)
    assert written[4].read_bytes() == drawn


def test_without_matplotlib_the_tables_are_there(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    path = write_files(tmp_path)
    with pytest.raises(PlotUnavailable, match=r"extra 'bench', then run python -m benchmarks\.suite\.report"):
        write_report(path)
    assert path.with_suffix(".md").read_text().startswith("Measured on")
    assert load_rows(path) == suite_rows()


def test_the_docs_page_has_a_place_for_each_type(tmp_path) -> None:
    page = tmp_path / "suite.md"
    page.write_text(PAGE.read_text())
    for dtype in ("float16", "bfloat16", "float8_e4m3fn"):
        name = mark([dataclasses.replace(suite_rows()[0], dtype=dtype)])
        include(page, name, f"table of {dtype}\n")
        begin, end = marks(name)
        assert f"{begin}\ntable of {dtype}\n{end}" in page.read_text()


def test_a_damaged_file_says_so(tmp_path) -> None:
    path = write_files(tmp_path)
    path.write_text('[{"m": 1}]')
    with pytest.raises(ReportError, match="not a list of suite rows"):
        load_rows(path)
    path.write_text("[")
    with pytest.raises(ReportError, match="move it away"):
        load_rows(path)


def test_the_recorded_results_are_of_the_suite() -> None:
    files = [path for path in RESULTS.glob("suite-sm*.json") if "." not in path.stem]
    assert files
    for path in files:
        assert len(load_rows(path)) == len(load_provenance(path)["shapes"])
        json.dumps([dataclasses.asdict(row) for row in load_rows(path)], allow_nan=False)
