"""What people read of a suite: means and tables in Markdown, the plots, the page in the docs.

    python -m benchmarks.suite.report benchmarks/results/suite-DEVICE-DTYPE.json

writes ``.md`` and, as PNG and SVG, ``-ratios`` and ``-roofline`` beside the file; with ``--docs`` it puts the
tables into benchmarks/results/suite.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.common.pages import PAGES, PlotUnavailable, include, number, table
from benchmarks.suite.files import Row, load_log, load_provenance, load_rows
from benchmarks.suite.means import Mean, means, roof
from benchmarks.suite.plot import plot_ratios, plot_roofline

PAGE = PAGES / "suite.md"
MEAN_HEADERS = ("shapes", "number", "geometric mean", "faster", "slower", "worst")
HEADERS = (
    "M x N x K", "layout", "us", "TFLOP/s", "GB/s", "% roof", "x best", "99 %", "x cuBLAS", "x torch",
    "MHz", "W", "burst TFLOP/s", "family",
)  # fmt: skip


def mean_cells(mean: Mean) -> tuple[str, ...]:
    """A mean as text, in the order of :data:`MEAN_HEADERS`."""
    worst = f"{_ratio(mean.worst.ratio_vs_cublaslt_best)} at {mean.worst.shape}"
    return mean.name, str(mean.shapes), _ratio(mean.ratio), str(mean.wins), str(mean.losses), worst


def cells(row: Row, provenance: dict[str, Any]) -> tuple[str, ...]:
    """A row as text, in the order of :data:`HEADERS`."""
    above = roof(row, provenance["device"])
    burst_us = provenance["shapes"].get(row.shape, {}).get("burst_us", {}).get("ours")
    state = "" if row.state == "settled" else f" ({row.state})"
    return (
        f"{row.m} x {row.n} x {row.k}",
        row.layout + (" f16 sum" if row.accumulate == "float16" else ""),
        number(row.ours_us),
        number(row.ours_tflops),
        number(row.problem.total_bytes / row.ours_us / 1e3),
        number(above and 100 * row.ours_tflops / above),
        _ratio(row.ratio_vs_cublaslt_best),
        "" if row.ci_low is None else f"{_ratio(row.ci_low)} .. {_ratio(row.ci_high)}",
        _ratio(row.cublas_us and row.cublas_us / row.ours_us),
        _ratio(row.torch_us and row.torch_us / row.ours_us),
        f"{row.sm_mhz:.0f}{state}" if row.sm_mhz else state.strip(" ()"),
        f"{row.watts:.0f}" if row.watts else "",
        number(burst_us and row.problem.flops / burst_us / 1e6),
        row.family,
    )


def markdown(rows: Sequence[Row], provenance: dict[str, Any], log: Sequence[dict[str, Any]]) -> str:
    """What it was measured on, the means, a table a group, and what it took."""
    libraries = ", ".join(f"{name} {version}" for name, version in provenance["libraries"].items())
    parts = [
        f"Measured on `{provenance['device_class']}` ({provenance['device']['name']}, {provenance['driver']};"
        f" {libraries}) in {rows[0].dtype if rows else 'no type'}, {provenance['date'][:10]}.",
        table(MEAN_HEADERS, [mean_cells(mean) for mean in means(rows)]),
    ]
    for group in dict.fromkeys(row.group for row in rows):
        parts += [f"### {group[0].upper()}{group[1:]} ({rows[0].dtype})"]
        parts += [table(HEADERS, [cells(row, provenance) for row in rows if row.group == group])]
    return "\n\n".join([*parts, *_cost(log)]) + "\n"


def rich_tables(rows: Sequence[Row], provenance: dict[str, Any]) -> list[Table]:
    """Shapes and means for a terminal."""
    shapes = [cells(row, provenance) for row in rows]
    return [_rich(HEADERS, shapes), _rich(MEAN_HEADERS, [mean_cells(mean) for mean in means(rows)])]


def write_report(path: Path) -> list[Path]:
    """Write tables and plots beside the file of the rows; the files written.

    Raises:
        ReportError: a file of the suite is damaged or missing.
        PlotUnavailable: there is no matplotlib; the tables are written all the same.
    """
    rows, provenance = load_rows(path), load_provenance(path)
    page = path.with_suffix(".md")
    page.write_text(markdown(rows, provenance, load_log(path)))
    return [page, *plot_ratios(rows, path), *plot_roofline(rows, provenance["device"], path)]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Tables, plots and docs page of a measured suite.")
    parser.add_argument("results", type=Path, help="suite-DEVICE-DTYPE.json")
    parser.add_argument("--docs", action="store_true", help="put the tables into results/suite.md too")
    arguments = parser.parse_args()
    try:
        write_report(arguments.results)
    except PlotUnavailable as error:
        sys.exit(f"error: {error}")
    if arguments.docs:
        page = arguments.results.with_suffix(".md")
        include(PAGE, mark(load_rows(arguments.results)), page.read_text())


def mark(rows: Sequence[Row]) -> str:
    """The name of the marks on the docs page that a file's tables belong between."""
    return f"suite {rows[0].dtype}" if rows else "suite"


def _cost(log: Sequence[dict[str, Any]]) -> list[str]:
    spent = [entry for entry in log if "race_s" in entry]
    if not spent:
        return []
    tuned = sum(entry["trials"] > 0 for entry in spent)
    trials, gpu_s = (sum(entry[key] for entry in spent) for key in ("trials", "gpu_s"))
    return [
        f"{tuned} of {len(spent)} shapes were tuned for this table, with {trials} trials; tuning and racing"
        f" took {gpu_s:.0f} s of the device, {gpu_s / len(spent):.1f} s a shape."
    ]


def _rich(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    shown = Table(box=None, pad_edge=False)
    for header in headers:
        shown.add_column(header, justify="left" if header in (headers[0], headers[-1]) else "right")
    for row in rows:
        shown.add_row(*row)
    return shown


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
