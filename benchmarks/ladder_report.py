"""What people read of a ladder: the table in Markdown and on the terminal, the plot, the page in the docs.

    python -m benchmarks.ladder_report benchmarks/results/ladder-DEVICE.json

writes ``ladder-DEVICE.md``, ``.png`` and ``.svg`` beside the file and puts the table into docs/ladder.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.figures import PlotUnavailable
from benchmarks.ladder_plot import plot
from benchmarks.ladder_rows import Row
from benchmarks.pages import DOCS, ReportError, include, number, table
from kernels.bank_conflicts import conflicts_per_phase
from kernels.rungs import BASELINES, RUNGS

PAGE = DOCS / "ladder.md"
MARK = "ladder"
HEADERS = (
    "rung", "TFLOP/s", "% cuBLAS", "seed TFLOP/s", "seed %", "x before", "smem B", "registers",
    "conflicts", "note",
)  # fmt: skip


def load_rows(path: Path) -> list[Row]:
    """The rows of a ``ladder-DEVICE.json``.

    Raises:
        ReportError: it is not such a file.
    """
    try:
        return [Row(**row) for row in json.loads(path.read_text())]
    except (ValueError, TypeError) as error:
        raise ReportError(f"{path} is not a list of ladder rows: {error}") from error


def speedups(rows: Sequence[Row]) -> list[float | None]:
    """How many times as fast each rung is as the one before it in its seed, at the same extents."""
    found: list[float | None] = []
    before: Row | None = None
    for row in rows:
        comparable = before and (before.seed, before.m, before.n, before.k) == (row.seed, row.m, row.n, row.k)
        vendor = row.family == "cublaslt"
        known = before and before.tflops and row.tflops
        found.append(row.tflops / before.tflops if comparable and known and not vendor else None)  # type: ignore[operator, union-attr]
        before = before if vendor else row
    return found


def conflicts(rung_name: str) -> str:
    """Extra passes per phase, stores from global memory / loads of fragments; - where unknown."""
    rung = next((one for one in RUNGS if one.name == rung_name), None)
    if rung is None or rung.problem.dtype.size != 2:
        return "-"
    means = conflicts_per_phase(rung.config, rung.problem)
    return " / ".join(f"{(means[f'{what} a'] + means[f'{what} b']) / 2:.2g}" for what in ("store", "load"))


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The table as text, in the order of :data:`HEADERS`."""
    return [
        (
            row.rung,
            number(row.tflops),
            number(row.pct_cublas),
            number(row.seed_tflops),
            number(row.seed_pct_cublas),
            number(speedup),
            "" if row.smem_bytes is None else str(row.smem_bytes),
            "" if row.registers is None else str(row.registers),
            conflicts(row.rung) if row.family != "cublaslt" else "",
            row.note,
        )
        for row, speedup in zip(rows, speedups(rows), strict=True)
    ]


def markdown(rows: Sequence[Row], device: str) -> str:
    """One table a seed document."""
    parts = [f"Measured on `{device}`."]
    numbered = list(zip(rows, cells(rows), strict=True))
    for seed, group in itertools.groupby(numbered, key=lambda pair: pair[0].seed):
        baseline = BASELINES.get(seed)
        where = f" (there on {baseline.device})" if baseline else ""
        parts += [f"### Seed {seed}{where}", table(HEADERS, [cell for _, cell in group])]
    return "\n\n".join(parts) + "\n"


def rich_table(rows: Sequence[Row]) -> Table:
    """The table for a terminal."""
    shown = Table(box=None, pad_edge=False)
    for header in HEADERS:
        shown.add_column(header, justify="left" if header in ("rung", "note") else "right")
    for row in cells(rows):
        shown.add_row(*row)
    return shown


def write_report(path: Path, rows: Sequence[Row]) -> list[Path]:
    """Write table and plot beside ``path``; the files written.

    Raises:
        PlotUnavailable: there is no matplotlib; the table is written all the same.
    """
    page = path.with_suffix(".md")
    page.write_text(markdown(rows, path.stem.removeprefix("ladder-")))
    return [page, *plot(rows, path)]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Table, plot and docs page of a measured ladder.")
    parser.add_argument("results", type=Path, help="ladder-DEVICE.json")
    path = parser.parse_args().results
    rows = load_rows(path)
    try:
        write_report(path, rows)
    except PlotUnavailable as error:
        sys.exit(f"error: {error}")
    include(PAGE, MARK, path.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()
